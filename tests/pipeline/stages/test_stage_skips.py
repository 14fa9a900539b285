"""Routes of tensors with several users, without MPI."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible, pop, stash
from divisible.communication.signatures import Tensor
from divisible.schedules.actions import Route
from divisible.skips import Skip
from pipeline.stages.stage_skips import StageSkips, routes_of, skips_across


@st.composite
def placements(draw):
    """Ranks of stages, and stages of some skip connections with their users."""
    n_stages = draw(st.integers(1, 8))
    ranks = draw(
        st.lists(st.integers(0, 3), min_size=n_stages, max_size=n_stages).map(tuple)
    )
    skips = []
    for name in draw(st.sets(st.sampled_from(["a", "b", "a@2"]))):
        first = draw(st.integers(0, n_stages - 1))
        users = draw(st.sets(st.integers(first, n_stages - 1), min_size=1))
        skips += [Skip(name, first, user) for user in sorted(users)]
    return ranks, skips


@given(placements())
def test_each_user_has_one_route_and_each_rank_one_message(placement):
    ranks, skips = placement
    routes = routes_of(skips, lambda position: position, ranks)
    names = [(route.name, route.source) for _, route in routes]
    assert len({*names}) == len(names)
    for name in {skip.name for skip in skips}:
        mine = [route for each, route in routes if each == name]
        ((first,),) = [{s.stash for s in skips if s.name == name}]
        users = {s.pop for s in skips if s.name == name} - {first}
        assert sorted(route.target for route in mine) == sorted(users)
        # A source has the tensor by then.
        assert all(route.source in {first, *users} for route in mine)
        assert all(route.source < route.target for route in mine)
        received = [
            ranks[route.target]
            for route in mine
            if ranks[route.source] != ranks[route.target]
        ]
        others = {ranks[user] for user in users} - {ranks[first]}
        assert sorted(received) == sorted(others)


def test_layers_hand_on_what_a_later_one_pops():
    model = Divisible(
        stash("a"), abs, pop("a"), stash("b"), pop("a"), pop("b"), pop("a")
    )
    parts = [model.view(*each) for each in ((0, 2), (2, 4), (4, 7))]
    found = [skips_across(part) for part in parts]
    assert found == [([], {"a": 0}), (["a"], {"a": 2, "b": 3}), (["a", "b"], {})]
    # The last users are elsewhere, and get the tensor from another stage.
    assert skips_across(parts[1], leaving={"b"}) == (["a"], {"b": 3})
    # Within a stage that no connection leaves.
    assert skips_across(parts[0], leaving=(), end=4) == ([], {"a": 0})


def tensors(*arrays):
    return tuple(map(Tensor, arrays))


def test_gradients_of_routes_are_added_up():
    skips = StageSkips.on(
        1,
        [("a", Route("a", 0, 1)), ("a", Route("a", 1, 2)), ("a", Route("a@3", 1, 3))],
    )
    assert (skips.entering, skips.leaving) == ({"a": "a"}, {"a": "a", "a@3": "a"})
    ones, twos = np.ones(2), np.full(2, 2.0)
    given = {"a": tensors(ones, None), "a@3": tensors(twos, twos)}
    ((first, second),) = skips.added_up(given).values()
    np.testing.assert_array_equal(first.array, [3, 3])
    np.testing.assert_array_equal(second.array, [2, 2])
    # Messages are used again.
    np.testing.assert_array_equal(ones, [1, 1])
    # A microbatch without samples has no tensors.
    assert skips.added_up({"a": (), "a@3": ()}) == {"a": ()}
    handed = skips.handed_over({"a": tensors(ones)})
    assert handed["a"] is handed["a@3"]
