"""Loops: what they may be called with, and which there are."""

import numpy as np
import pytest

from chainer_kernels import chainer_rules, compiling


def _copy(x, y):
    for i in range(y.size):
        y[i] = x[i]


def test_only_what_is_read_may_be_read_only():
    copy = compiling.Loop(_copy, "void(f4[::1], f4[::1])")
    compiling.LOOPS.remove(copy)
    x, y = np.arange(3, dtype="f"), np.zeros(3, "f")
    x.flags.writeable = False
    copy(x, y)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(ValueError, match="_copy writes to an array that is read-only"):
        copy(y + 1, x)


def test_compile_all_knows_the_update_rules(monkeypatch):
    monkeypatch.setattr(compiling.Loop, "compiled", None)
    names = {each.__name__ for each in compiling.compile_all()}
    assert {"relu", "gather"} <= names
    assert {f"{formula.__name__}_arrays" for formula in chainer_rules.FORMULAS} <= names
