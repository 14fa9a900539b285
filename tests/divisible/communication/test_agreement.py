"""Differences between what ranks say."""

import pytest

from divisible.communication.agreement import first_difference


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([["a"], ["a"], ["b"]], "rank 0 has a, but rank 2 has b"),
        ([["a", "b"], ["a"]], "rank 0 has b, which rank 1 has not"),
        ([["a"], ["a", "b"]], "rank 1 has b, which rank 0 has not"),
        ([["a", "b"], ["c"]], "rank 0 has a, but rank 1 has c"),
    ],
)
def test_the_first_difference_is_named(said, words):
    assert first_difference(said) == words
