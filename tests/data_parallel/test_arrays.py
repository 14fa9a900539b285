"""Arrays of an exchange: what is taken, and where the new numbers go."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel.arrays import Arrays, Spec, specs_of


def column(n=4):
    return np.arange(3 * n, dtype="f").reshape(n, 3)[:, 1]


def read_only(n=4):
    array = np.arange(n, dtype="f")
    array.flags.writeable = False
    return array


MAKERS = {
    "plain": lambda: np.arange(6, dtype="f").reshape(2, 3),
    "without dimensions": lambda: np.array(5, "f"),
    "without elements": lambda: np.empty((2, 0), "f"),
    "strided": column,
    "backwards": lambda: np.arange(4, dtype="f")[::-1],
    "Fortran's": lambda: np.asfortranarray(np.arange(6, dtype="f").reshape(2, 3)),
    "half": lambda: np.arange(4, dtype="e"),
    "double": lambda: np.arange(4, dtype="d"),
    "other byte order": lambda: np.arange(4, dtype=">f4"),
    "matrix": lambda: np.arange(6, dtype="f").reshape(2, 3).view(np.matrix),
}


def exchanged(arrays, exempt=None):
    """Adds 1 to all, as an exchange would."""
    kept = Arrays(specs_of(arrays, exempt))
    for i, array in enumerate(arrays):
        kept.put(i, array)
    for flat in kept.flat:
        assert flat.dtype == np.float32 and flat.ndim == 1 and flat.flags.c_contiguous
        flat += 1
    return kept, [kept.result(i) for i in range(len(arrays))]


@given(st.lists(st.sampled_from(sorted(MAKERS)), max_size=6))
def test_the_arrays_themselves_get_the_new_numbers(names):
    arrays = [MAKERS[name]() for name in names]
    before = [array.copy() for array in arrays]
    kept, results = exchanged(arrays)
    for array, old, result, spec in zip(arrays, before, results, kept.specs):
        assert result is array
        np.testing.assert_array_equal(array, old + 1)
        assert spec.shape == array.shape and spec.size == array.size
    assert kept.are_present == [True] * len(arrays)


@pytest.mark.parametrize("name", ["plain", "without dimensions", "matrix"])
def test_contiguous_numbers_are_not_copied(name):
    array = MAKERS[name]()
    kept, _ = exchanged([array])
    assert np.shares_memory(kept.flat[0], array)


def test_what_cannot_be_written_is_left_alone():
    array = read_only()
    kept = Arrays([Spec("w", (4,), "f", False)])
    kept.put(0, array)
    kept.flat[0] += 1
    np.testing.assert_array_equal(kept.result(0), [1, 2, 3, 4])
    np.testing.assert_array_equal(array, [0, 1, 2, 3])


@pytest.mark.parametrize("second", [lambda a: a, lambda a: a[::-1], lambda a: a[:4]])
def test_memory_that_two_share_is_the_first_one_s(second):
    """Backward gives several parameters one gradient, where they are added."""
    array = np.arange(4, dtype="f")
    other = second(array)
    kept = Arrays([Spec(name, (4,), "f", False) for name in "ab"])
    kept.put(0, array)
    kept.put(1, other)
    old = other.copy()
    kept.flat[0] += 10
    kept.flat[1] += 1
    first, result = kept.result(0), kept.result(1)
    assert first is array and not np.shares_memory(result, array)
    np.testing.assert_array_equal(array, [10, 11, 12, 13])
    np.testing.assert_array_equal(result, old + 1)


def test_zeros_stand_for_what_is_missing():
    kept = Arrays([Spec("w", (2, 2), "e", False), Spec("b", (), "d", False)])
    for i in range(2):
        kept.put(i, None)
        np.testing.assert_array_equal(kept.flat[i], np.zeros([4, 1][i], "f"))
        kept.flat[i] += 1
    assert kept.are_present == [False, False]
    results = [kept.result(i) for i in range(2)]
    assert [r.dtype.char for r in results] == ["e", "d"]
    np.testing.assert_array_equal(results[0], np.ones((2, 2)))
    assert results[1].shape == () and results[1] == 1


def test_numbers_beyond_float32_are_infinite():
    array = np.array([1e300, -1e300, 1e-300, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = Arrays(specs_of([array], None))
        kept.put(0, array)
        kept.result(0)
    np.testing.assert_array_equal(array, [np.inf, -np.inf, 0, 1])


def test_results_beyond_float16_are_infinite():
    array = np.ones(2, "e")
    kept = Arrays(specs_of([array], None))
    kept.put(0, array)
    kept.flat[0][:] = 1e5, 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept.result(0)
    np.testing.assert_array_equal(array, [np.inf, 3])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones(3, "f"), r"array w of \(4,\) and float32 was to be put, not \(3,\)"),
        (np.ones((4, 1), "f"), r"not \(4, 1\) float32"),
        (np.ones(4, "d"), r"not \(4,\) float64"),
    ],
)
def test_another_array_than_was_said_is_refused(array, words):
    kept = Arrays([Spec("w", (4,), "f", False)])
    with pytest.raises(ValueError, match=words):
        kept.put(0, array)


@pytest.mark.parametrize("first", [np.ones(4, "f"), None])
def test_an_array_is_put_once(first):
    kept = Arrays([Spec("w", (4,), "f", False)])
    kept.put(0, first)
    with pytest.raises(ValueError, match="array w has been put already"):
        kept.put(0, np.ones(4, "f"))


A = np.ones(4, "f")
MATRIX = np.ones((4, 4), "f")


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ([A, [1.0, 2.0]], TypeError, "array 1 must be a NumPy or CuPy array"),
        (
            [np.float32(1)],
            TypeError,
            "NumPy or CuPy array, not float32",
        ),
        ([np.ones(3, "i")], TypeError, "float16, float32 or float64, not int32"),
        ([np.ones(3, "F")], TypeError, "not complex64"),
        ([np.ones(3, "g")], TypeError, "not float128|not longdouble"),
        ([A, read_only()], ValueError, "array 1 cannot be written: give a copy of it"),
        ([A, A], ValueError, "array 1 shares memory with another"),
        ([A[1:], A[:2]], ValueError, "array 1 shares memory with another"),
        ([MATRIX, MATRIX[:, 1]], ValueError, "array 1 shares memory"),
        ([MATRIX[:, 1], MATRIX[:, 2]], ValueError, "or lies between its numbers"),
        ([np.broadcast_to(A[:1], (3,))], ValueError, "array 0 cannot be written"),
    ],
)
def test_arrays_that_are_refused(arrays, error, words):
    with pytest.raises(error, match=words):
        specs_of(arrays, None)


@pytest.mark.parametrize("exempt", [[2], [-1], [0.5], [True], np.array([True, False])])
def test_positions_that_are_refused(exempt):
    with pytest.raises(ValueError, match="must have positions of 2 arrays"):
        specs_of([A, np.ones(4, "f")], exempt)


def test_exempt_are_the_positions_given():
    arrays = [np.ones(1, "f") for _ in range(3)]
    for exempt in [[0, 2], {2, 0}, np.array([2, 0, 0]), (0, 2)]:
        specs = specs_of(arrays, exempt)
        assert [spec.is_exempt for spec in specs] == [True, False, True]
    assert str(specs[0]) == "array 0 of (1,) and float32, exempt"


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.randoms())
def test_slices_of_one_array_do_not_share_memory(sizes, random):
    """As the parameters of one that was cut up; in any order."""
    ends = np.cumsum(sizes)
    whole = np.zeros(ends[-1], "f")
    arrays = [whole[end - size : end] for size, end in zip(sizes, ends)]
    random.shuffle(arrays)
    _, results = exchanged(arrays)
    assert all(result is array for result, array in zip(results, arrays))
    np.testing.assert_array_equal(whole, 1)
    filled = [array for array in arrays if array.size]
    if filled:
        with pytest.raises(ValueError, match="shares memory"):
            specs_of([*arrays, random.choice(filled)[:1]], None)
