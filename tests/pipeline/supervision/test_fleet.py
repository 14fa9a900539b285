import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.supervision.fleet import Fleet
from pipeline.supervision.hosts import Host

HOSTS = [Host("a", 2), Host("b", 2), Host("c", 2)]


def placed(fleet):
    placement = fleet.place()
    return None if placement is None else [*map(str, placement.hosts)]


def test_a_spare_host_takes_the_place_of_a_lost_one_until_it_is_back():
    silent = {"b"}
    fleet = Fleet(HOSTS, 4, answering=lambda names: set(names) - silent)
    assert placed(fleet) == ["a:2", "b:2"]
    fleet.look()
    assert placed(fleet) == ["a:2", "c:2"]
    silent.add("c")
    fleet.look()
    assert placed(fleet) is None
    assert fleet.missing() == "b, c are out of reach"
    silent.clear()
    fleet.look()
    assert placed(fleet) == ["a:2", "b:2"] and fleet.missing() == ""


@pytest.mark.parametrize("fits, left", [(5, ["a:2", "c:2"]), (3, ["a:2", "c:1"])])
def test_fewer_ranks_run_where_they_may_and_can(fits, left):
    fleet = Fleet(HOSTS, 6, shrinks=True, fits=lambda n: n <= fits)
    fleet.out_of_reach = {"b"}
    assert placed(fleet) == left
    fleet.shrinks = False
    assert placed(fleet) is None


def test_a_host_that_ends_ranks_again_and_again_is_left_out():
    fleet = Fleet(HOSTS, 4)
    fleet.lose("a", has_progress=False)
    fleet.lose("a", has_progress=True)
    assert placed(fleet) == ["a:2", "b:2"]
    fleet.lose("a", has_progress=False)
    assert placed(fleet) == ["b:2", "c:2"]
    assert fleet.missing() == "a ended ranks 2 times"
    # It is better than none.
    fleet.out_of_reach = {"c"}
    assert placed(fleet) == ["a:2", "b:2"]
    fleet.out_of_reach = set()
    fleet.forgive()
    assert placed(fleet) == ["a:2", "b:2"]


def test_the_last_host_runs_fewer_ranks_instead():
    fleet = Fleet([Host("", 4)], 4, shrinks=True)
    found = []
    for _ in range(5):
        fleet.lose("", has_progress=False)
        found.append(fleet.place().n_ranks)
    assert found == [4, 3, 3, 2, 2]
    fleet.shrinks = False
    assert fleet.place().n_ranks == 4


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 8),
    st.booleans(),
    st.sets(st.integers(0, 4)),
    st.dictionaries(st.integers(0, 4), st.integers(1, 5)),
)
def test_no_host_is_overloaded_and_none_out_of_reach_used(
    slots, n_ranks, shrinks, silent, deaths
):
    hosts = [Host(str(i), n) for i, n in enumerate(slots)]
    fleet = Fleet(hosts, n_ranks, shrinks)
    fleet.out_of_reach = {*map(str, silent)}
    fleet.deaths = {str(name): n for name, n in deaths.items()}
    room = sum(host.slots for host in hosts if host.name not in fleet.out_of_reach)
    placement = fleet.place()
    if placement is None:
        assert room < n_ranks and (not shrinks or room == 0)
        return
    assert 1 <= placement.n_ranks <= n_ranks
    assert shrinks or placement.n_ranks == n_ranks
    for host in placement.hosts:
        assert host.name not in fleet.out_of_reach
        assert 1 <= host.slots <= slots[int(host.name)]
