"""Loops: what they may be called with."""

import numpy as np
import pytest

from chainer_kernels import all_loops, compiling


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


def test_what_the_processor_lacks_is_not_compiled(monkeypatch):
    """LLVM would end the process."""
    loops = [
        compiling.Loop(_copy, "void(f4[::1], f4[::1])", features=features)
        for features in ((), ("no-such-feature",))
    ]
    monkeypatch.setattr(all_loops, "LOOPS", loops)
    del compiling.LOOPS[-2:]
    assert [each.is_possible for each in loops] == [True, False]
    assert all_loops.compile_all() == loops[:1]
