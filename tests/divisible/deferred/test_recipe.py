import numpy as np
import pytest

from divisible.deferred.array import DeferredArray
from divisible.deferred.recipe import new_key


def test_a_conversion_of_numbers_that_are_too_large_is_refused():
    deferred = DeferredArray((2,), np.float32, 0)
    deferred[...] = 1e6
    half = deferred.astype("float16")
    half.recipe.assign_keys("here", set())
    with pytest.raises(OverflowError, match="float16, whose largest number is 65504"):
        half.make()


def test_what_an_array_is_written_from_gets_a_key_as_well():
    source = DeferredArray((2,), np.float32, 0)
    source.write(lambda array: array.fill(3))
    array = DeferredArray((2,), np.float32, 0)
    array[...] = source
    array.recipe.assign_keys("1/W", set())
    np.testing.assert_array_equal(array.make(), [3, 3])


def test_a_place_that_is_taken_gets_another_key():
    taken = set()
    keys = [new_key(0, "1/W", taken) for _ in range(3)]
    assert len(set(keys)) == 3 == len(taken)
