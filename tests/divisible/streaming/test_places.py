"""Places of a file, beside a list of all its bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.streaming.places import Places
from tests.support.examples import examples


@examples(100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40))
def test_no_byte_is_in_two_places_and_free_ones_are_joined(calls):
    places, taken, used = Places(), [], set()
    for is_taken, number in calls:
        if is_taken:
            before = places.size
            start = places.take(number)
            own = set(range(start, start + number))
            assert not own & used and start + number <= places.size
            used |= own
            taken.append((start, number))
            if places.size > before:
                # It has grown because no run of free bytes was long enough.
                assert longest_run(set(range(before)) - (used - own)) < number
        elif taken:
            start, n_bytes = taken.pop(number % len(taken))
            used -= set(range(start, start + n_bytes))
            places.give_back(start, n_bytes)
    for start, n_bytes in taken:
        places.give_back(start, n_bytes)
    size = places.size
    assert places.take(size) == 0 and places.size == size


def longest_run(numbers):
    longest = run = 0
    for number in sorted(numbers):
        run = run + 1 if number - 1 in numbers else 1
        longest = max(longest, run)
    return longest


def test_nothing_changes_where_a_file_cannot_grow():
    places = Places()
    places.give_back(places.take(30), 30)

    def grow(size, new_size):
        assert (size, new_size) == (30, 50)
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        places.take(50, grow)
    assert places.size == 30 and places.take(30) == 0
