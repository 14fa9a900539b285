"""The examples in the docstrings of a package that needs an extra."""

import doctest
import importlib
import pkgutil

import pytest

pytest.importorskip("torch")

import torch_layers

MODULES = [
    f"torch_layers.{module.name}"
    for module in pkgutil.iter_modules(torch_layers.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
