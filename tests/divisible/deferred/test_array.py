import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.deferred.array import DeferredArray
from divisible.deferred.recipe import NotMadeError
from tests.support.examples import examples


@examples(60)
@given(st.data())
def test_writes_are_done_in_order(data):
    """The same operations on a deferred and on an ordinary array."""
    deferred = DeferredArray((4, 6), np.float64, 0)
    ordinary = np.zeros((4, 6))
    deferred[...] = 0
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(
            st.sampled_from(
                [
                    ...,
                    slice(1, 3),
                    (slice(None), slice(0, 6, 2)),
                    (2, ...),
                    (slice(None, None, -1), 3),
                    (None, 1),
                    (3, -1),
                ]
            )
        )
        number = data.draw(st.integers(-3, 3))
        kind = data.draw(st.sampled_from(["set", "multiply", "view", "copy", "from"]))
        for array in (deferred, ordinary):
            if kind == "set":
                array[index] = number
            elif kind == "multiply":
                array[index] *= number
            elif kind == "view":
                array.reshape(2, 2, 6)[:, 1].T[0] += number
            elif kind == "from":
                array[1:] = array[:-1].copy()
        if kind == "copy":
            deferred = deferred.copy()
    deferred.recipe.assign_keys("test", set())
    np.testing.assert_array_equal(deferred.make(), ordinary)
    assert deferred.make() is deferred.make()


def test_many_writes_to_parts_in_place():
    array = DeferredArray((64, 3), np.float64, 0)
    array.fill(1)
    for row in range(64):
        array[row] *= row
    array.recipe.assign_keys("test", set())
    np.testing.assert_array_equal(array.make(), np.arange(64.0)[:, None] * np.ones(3))
    assert len(array.recipe.steps) == 65


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_cannot_be_pickled(protocol):
    with pytest.raises(NotMadeError, match="pickle"):
        pickle.dumps(DeferredArray((1,), np.float32, 0), protocol)


def test_arrays_like_a_deferred_one():
    array = DeferredArray((2, 3), np.float32, 0)
    for like, value in (
        (np.zeros_like(array), 0),
        (np.ones_like(array), 1),
        (np.full_like(array, 7, dtype=np.int32), 7),
    ):
        assert type(like) is DeferredArray
        like.recipe.assign_keys("test", set())
        np.testing.assert_array_equal(like.make(), np.full((2, 3), value))
    assert (np.shape(array), np.ndim(array), np.size(array)) == ((2, 3), 2, 6)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(array)[0] = 1


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 3)])
@pytest.mark.parametrize("full_matrices", [True, False])
def test_singular_values_are_found_later(shape, full_matrices):
    array, ordinary = DeferredArray(shape, np.float64, 0), np.empty(shape)
    random = np.random.RandomState(0).rand(*shape)
    array[...] = ordinary[...] = random
    array *= 2
    values = np.linalg.svd(array, compute_uv=False)
    parts = [*np.linalg.svd(array, full_matrices), values, values[..., 0]]
    # What comes later does not matter.
    array[0] = 0
    whole = [*np.linalg.svd(2 * random, full_matrices)]
    expected = [*whole, whole[1], whole[1][..., 0]]
    for part, value in zip(parts, expected):
        part.recipe.assign_keys("test", set())
        assert part.shape == value.shape and part.dtype == value.dtype
        np.testing.assert_allclose(part.make(), value, rtol=1e-12)


def test_an_element_cannot_be_read():
    element = DeferredArray((2, 3), np.float32, 0)[1, 2]
    assert element.shape == ()
    for read in (float, int, bool, lambda x: x > 1, lambda x: x.item()):
        with pytest.raises(NotMadeError, match="link hook, can be added"):
            read(element)


def test_a_conversion_is_done_when_the_array_is_made():
    """What was written before it is rounded, and what is written later is as well."""
    deferred = DeferredArray((3, 4), np.float32, 0)
    values = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)
    deferred[...] = values
    half = deferred.astype(np.float16)
    half *= 3
    assert (half.shape, half.dtype, deferred.dtype) == ((3, 4), np.float16, np.float32)
    expected = values.astype(np.float16)
    expected *= 3
    for array in (half, half.copy()):
        array.recipe.assign_keys("here", set())
        made = array.make()
        assert made.dtype == np.float16
        np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(deferred.make(), values)


def test_what_cannot_be_converted_is_refused():
    half = DeferredArray((2,), np.float16, 0)
    for refused in (half[:1], DeferredArray((2,), np.int32, 0)):
        with pytest.raises(NotMadeError, match="astype needs values"):
            refused.astype(np.float32)
