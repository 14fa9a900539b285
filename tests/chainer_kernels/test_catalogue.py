"""The catalogue against Chainer: what it names is there, and calls a kernel."""

import functools
import importlib
import inspect

import chainer
import pytest
from chainer.functions.math.basic_math import Add

from chainer_kernels import catalogue


@pytest.mark.parametrize("entry", catalogue.CATALOGUE, ids=lambda entry: entry.name)
def test_entry(entry):
    chainers = functools.reduce(
        getattr, entry.name.split("."), importlib.import_module(entry.module)
    )
    assert hasattr(chainers, "__wrapped__"), "no kernel stands for it"
    kernel = inspect.signature(entry.load()).parameters.values()
    # A kernel can be called as Chainer's method is, under other names perhaps.
    own = inspect.signature(chainers.__wrapped__).parameters.values()
    assert len(kernel) == len(own)


def test_a_method_has_one_entry():
    names = [(entry.module, entry.name) for entry in catalogue.CATALOGUE]
    assert len(set(names)) == len(names)
    assert sum(map(len, catalogue.by_module().values())) == len(names)


@pytest.mark.parametrize("name", catalogue.BACKWARD)
def test_backward(name):
    module, _, node = name.partition(":")
    is_ours = module in ("recurrent", "recurrent_steps", "block_products")
    package = "chainer_kernels" if is_ours else "chainer"
    function = getattr(importlib.import_module(f"{package}.functions.{module}"), node)
    assert issubclass(function, chainer.FunctionNode)
    found = catalogue.backward_of(function)
    assert found is catalogue.BACKWARD[name]
    rule = catalogue.weights_of(function)
    assert callable(rule) if found.weights else rule is None


def test_subclasses_and_others_are_unknown():
    class Own(Add):
        pass

    for function in (Own, chainer.functions.math.exponential.Exp):
        assert catalogue.backward_of(function) == catalogue.Backward()
        assert catalogue.weights_of(function) is None
