"""Each rank's files are in a second place."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.copies.partners import partners


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=16))
def test_a_partner_is_in_another_place_if_there_is_one(places):
    found = partners(places)
    if len(set(places)) == 1:
        assert found == [None] * len(places)
        return
    for rank, partner in enumerate(found):
        assert places[partner] != places[rank]


@given(st.integers(2, 5), st.integers(1, 4))
def test_equal_places_share_the_copies_equally(n_places, n_ranks):
    places = [str(place) for place in range(n_places) for _ in range(n_ranks)]
    assert set(Counter(partners(places)).values()) == {1}
