import numpy as np
import pytest

from divisible.communication.signatures import Tensor
from divisible.minibatch import (
    as_arrays,
    concatenate,
    join,
    split,
    split_unequally,
    unequal_sizes,
)


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
        ([[1, 2]], TypeError, "t must be an array or a tuple of arrays, not a list"),
        ([3, 4], TypeError, "not a list with int"),
        ({}, TypeError, "t must be an array or a tuple of arrays, not dict"),
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


@pytest.mark.parametrize(
    "n_samples, n_microbatches, sizes",
    [
        (6, 3, [3, 2, 1]),
        (5, 3, [2, 2, 1]),
        (3, 5, [2, 1, 0, 0, 0]),
        (2, 2, [2, 0]),
        (1, 2, [1, 0]),
        (4, 1, [4]),
    ],
)
def test_to_predict_microbatches_are_unequal(n_samples, n_microbatches, sizes):
    x = np.arange(n_samples)
    parts = [part for (part,) in split_unequally([x], n_microbatches)]
    assert list(map(len, parts)) == unequal_sizes(n_samples, n_microbatches) == sizes
    np.testing.assert_array_equal(np.concatenate(parts), x)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_outputs_are_joined_along_an_axis(axis):
    whole = np.arange(7 * 7 * 7).reshape(7, 7, 7)
    parts = [(part,) for part in np.split(whole, [4, 6], axis)]
    (joined,) = concatenate(parts, [4, 2, 1], axis)
    np.testing.assert_array_equal(joined, whole)


def test_each_output_has_its_axis():
    parts = [(np.ones((2, n, 5)), np.ones((n, 3))) for n in (4, 3)]
    shapes = [y.shape for y in concatenate(parts, [4, 3], (1, 0))]
    assert shapes == [(2, 7, 5), (7, 3)]


def test_a_sample_may_have_several_rows():
    parts = [(np.ones((2 * n, 5)),) for n in (4, 3)]
    assert concatenate(parts, [4, 3])[0].shape == (14, 5)


def test_one_part_is_what_it_is():
    y = np.ones((2, 3))
    assert concatenate([(y,)], [3])[0] is y


@pytest.mark.parametrize(
    "shapes, axis, message",
    [
        ([(2, 4, 5), (2, 3, 5)], 0, r"axis 0: if they are along axis 1, use predict"),
        ([(2, 4, 5), (2, 3, 5)], -1, r"along axis -1: if they are along axis 1"),
        ([(2, 4, 5), (2, 3, 5)], 3, r"along axis 3: if they are along axis 1"),
        (
            [(2, 5), (2, 5)],
            0,
            r"\(2, 5\) for 4 samples and \(2, 5\) for 3.*: return them",
        ),
        ([(4, 6), (3, 5)], 0, "and the rest in equal shapes"),
        ([(4,), (3, 1)], 0, "output 0 of the last layer"),
        ([(4, 2), (3, 2)], (0, 1), "2 outputs along the axes .*, but .* returned 1"),
    ],
)
def test_outputs_that_cannot_be_joined_are_refused(shapes, axis, message):
    with pytest.raises(ValueError, match=message):
        concatenate([(np.ones(shape),) for shape in shapes], [4, 3], axis)


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
