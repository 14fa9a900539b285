import numpy as np
import pytest

from divisible.minibatch import as_arrays


def test_one_array_or_several():
    x = np.ones((2, 3))
    assert as_arrays("x", x) == (x,)
    several = as_arrays("x", [x, x[:, 0]])
    assert [array.shape for array in several] == [(2, 3), (2,)]


@pytest.mark.parametrize(
    "value, error, message",
    [
        (None, TypeError, "t is None on rank 1"),
        ([], ValueError, "t is an empty list on rank 1: it needs at least one array"),
        ([[1, 2]], TypeError, "t must be an array or a tuple of arrays, not list"),
        (np.zeros((0, 2)), ValueError, r"t has no samples: its shape is \(0, 2\)"),
        (np.zeros(()), ValueError, r"t has no samples: its shape is \(\)"),
        ((np.ones(2), np.ones(3)), ValueError, "arrays of t have 2 and 3 samples"),
    ],
)
def test_what_is_no_minibatch_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        as_arrays("t", value, " on rank 1")
