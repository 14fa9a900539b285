"""Quantiles are taken anew every so many exchanges, and kept in between."""

from hypothesis import given
from hypothesis import strategies as st

from data_parallel.arrays import Spec
from data_parallel.quantiles import Quantiles


def specs(names):
    return [Spec(name, (1,), "f", False) for name in names]


def exchange(quantiles, names, found):
    """Returns the q of each array, those that are new replaced by ``found``."""
    now = quantiles.open(specs(names))
    for i, q in enumerate(now):
        now[i] = q or found
    quantiles.keep()
    return list(now)


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 12))
def test_they_are_kept(every, n_exchanges, when_loaded):
    quantiles, expected = Quantiles(every), 0
    for number in range(n_exchanges):
        if number == when_loaded:
            other = Quantiles(every)
            other.load({name: quantiles.state(name) for name in "ab"})
            quantiles = other
        if number % every == 0:
            expected = number + 1
        assert exchange(quantiles, "ab", number + 1) == [expected] * 2


def test_a_new_array_has_its_own_at_once():
    quantiles = Quantiles(10)
    assert exchange(quantiles, "a", 1.0) == [1]
    assert exchange(quantiles, "ba", 2.0) == [2, 1]
    assert exchange(quantiles, "ab", 3.0) == [1, 2]
    assert quantiles.state("b") == {"age": 3, "q": 2}
    assert quantiles.state("c") == {"age": 3, "q": None}
