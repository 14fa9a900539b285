import numpy as np
import pytest

from divisible.communication.signatures import Tensor
from divisible.minibatch import as_arrays, join, split


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


@pytest.mark.parametrize(
    "n_samples, n_microbatches, sizes",
    [(6, 3, [2, 2, 2]), (5, 3, [2, 2, 1]), (2, 4, [1, 1, 0, 0])],
)
def test_microbatches_are_as_equal_as_they_come(n_samples, n_microbatches, sizes):
    x, t = np.arange(n_samples), np.arange(n_samples) * 10
    parts = split([x, t], n_microbatches)
    assert [len(part) for part, _ in parts] == sizes
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
    assert all((targets == 10 * part).all() for part, targets in parts)


def test_outputs_are_put_together_again():
    """Microbatches of no samples have none."""
    y, z = np.arange(5), np.ones((5, 2))
    parts = [tuple(map(Tensor, part)) for part in split([y, z], 3)]
    joined = join([*parts, ()])
    np.testing.assert_array_equal(joined[0], y)
    np.testing.assert_array_equal(joined[1], z)


def test_scalars_are_no_outputs():
    with pytest.raises(TypeError, match="returned a scalar for a microbatch"):
        join([(Tensor(np.array(3.0)),)])


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.ma.asarray, np.asmatrix, np.rec.array])
def test_subclasses_are_refused(kind):
    with pytest.raises(TypeError, match="x is a .*: arrays of subclasses would lose"):
        as_arrays("x", kind(np.ones((2, 3))))


def test_files_in_memory_are_plain(tmp_path):
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 2))
    assert as_arrays("x", array[:2])[0].shape == (2, 2)
