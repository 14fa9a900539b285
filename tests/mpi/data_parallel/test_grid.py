"""A grid's communicators, and what is refused on every rank."""

import re
import time

import numpy as np
import pytest
from chainer.iterators import SerialIterator
from mpi4py import MPI

import data_parallel.grid as grid_module
from data_parallel import Grid, ReplicaIterator
from divisible import LayerCost, Machine, Plan, Profile, best_plan
from divisible.planning.coding import CodingRate
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

N_RANKS = 4


def places(comm, n_pipeline, placement, expected):
    """Compares the ranks of each replica with the expected ones."""
    with Grid(comm, n_pipeline, placement=placement) as grid:
        assert grid.n_replicas == len(expected)
        assert expected[grid.replica][grid.pipeline.rank] == comm.rank
        assert grid.data.rank == grid.replica
        assert grid.pipeline.allgather(comm.rank) == expected[grid.replica]
        column = [row[grid.pipeline.rank] for row in expected]
        assert grid.data.allgather(comm.rank) == column
        assert grid.place(comm.rank) == (grid.replica, grid.pipeline.rank)
        assert grid.rank_of(grid.replica, grid.pipeline.rank) == comm.rank
        assert MPI.Comm.Compare(grid.world, comm) == MPI.IDENT
    assert grid.pipeline == grid.data == MPI.COMM_NULL


@pytest.mark.parametrize(
    "n_pipeline, placement, expected",
    [
        (2, "stages_together", [[0, 1], [2, 3]]),
        (2, "replicas_together", [[0, 2], [1, 3]]),
        (1, "stages_together", [[0], [1], [2], [3]]),
        (4, "replicas_together", [[0, 1, 2, 3]]),
    ],
)
def test_places_of_ranks(n_pipeline, placement, expected):
    assert_on_ranks(N_RANKS, places, n_pipeline, placement, expected)


def of_a_plan(comm):
    plan = Plan([0, 1, 2, 3, 4], replicas=2, stages_per_rank=2)
    with Grid.of(plan, comm, placement="replicas_together") as grid:
        assert (grid.n_pipeline, grid.n_replicas) == (2, 2)
        assert grid.placement == "replicas_together"
    unequal = Plan([0, 1, 2, 3, 4], replicas=2, stages_per_rank=2, shares=[3, 1])
    with Grid.of(unequal, comm) as grid:
        iterator = ReplicaIterator(SerialIterator(range(8), 8, shuffle=False), grid)
        assert next(iterator) == ([*range(6)] if grid.replica == 0 else [6, 7])
        equal = ReplicaIterator(SerialIterator(range(8), 8), grid, shares=[1, 1])
        assert len(next(equal)) == 4
    with pytest.raises(ValueError, match="for 3 ranks in 3 rows of 1, but .* are 4"):
        Grid.of(Plan([0, 4], replicas=3), comm)


def test_the_grid_of_a_plan():
    assert_on_ranks(N_RANKS, of_a_plan)


def by_cost(comm):
    """Two hosts of two ranks: what sends more stays within one."""
    found = []
    for output, parameters in ((1e6, 4), (4, 1e6)):
        cost = {"output_bytes": output, "parameter_bytes": parameters}
        profile = Profile([LayerCost(1, 1, 1, **cost)] * 4, n_samples=16)
        plan = best_plan(
            profile,
            Machine(4),
            schedules=["1f1b"],
            coding=CodingRate(1e9, 1e9),
            replicas=(2, 2),
        )
        with pytest.MonkeyPatch.context() as patch:
            host = f"host {comm.rank // 2}"
            patch.setattr(grid_module.socket, "gethostname", lambda host=host: host)
            with Grid.of(plan, comm, placement="auto") as grid:
                assert (grid.n_pipeline, grid.n_replicas) == (2, 2)
                found.append(grid.placement)
    assert found == ["stages_together", "replicas_together"]
    with pytest.raises(ValueError, match="does not say what its stages send"):
        Grid.of(Plan([0, 1, 2], replicas=2), comm, placement="auto")


def by_hosts(comm, names, n_pipeline, expected):
    """Without a plan: fewer gradients between hosts."""
    with pytest.MonkeyPatch.context() as patch:
        host = names[comm.rank]
        patch.setattr(grid_module.socket, "gethostname", lambda: host)
        with Grid(comm, n_pipeline, placement="auto") as grid:
            assert grid.placement == expected
            if expected == "replicas_together":
                assert set(grid.data.allgather(host)) == {host}


@pytest.mark.parametrize(
    "names, n_pipeline, expected",
    [
        ("aabb", 2, "replicas_together"),
        ("abab", 2, "stages_together"),
        ("aaaa", 2, "stages_together"),
        ("abcd", 2, "stages_together"),
        ("aabb", 4, "stages_together"),
        ("aabb", 1, "stages_together"),
    ],
)
def test_a_placement_is_chosen_by_the_hosts(names, n_pipeline, expected):
    assert_on_ranks(N_RANKS, by_hosts, names, n_pipeline, expected)


def test_a_placement_is_chosen_by_what_ranks_send():
    assert_on_ranks(N_RANKS, by_cost)


def many(comm):
    """Makes more communicators than MPI has, and drops them."""
    for _ in range(1100):
        grid = Grid(comm, 1)
    assert grid.n_replicas == comm.size


@pytest.mark.matrix
def test_a_grid_that_is_dropped_is_freed():
    assert_on_ranks(2, many, timeout=120)


def wrong(comm, arguments, error, message):
    """Makes a grid of the arguments of this rank."""
    with pytest.raises(error_of(error), match=message):
        n_pipeline, options = arguments[comm.rank % len(arguments)]
        Grid(comm, n_pipeline, **options)


def error_of(name):
    return {"ValueError": ValueError, "TypeError": TypeError}[name]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            [(3, {})],
            "ValueError",
            "n_pipeline is 3, but 4 ranks .* 1 or 2 or 4: give one",
        ),
        ([(0, {})], "ValueError", "n_pipeline is 0"),
        ([(-2, {})], "ValueError", "n_pipeline is -2"),
        ([(8, {})], "ValueError", "n_pipeline is 8"),
        ([(2.0, {})], "TypeError", "n_pipeline must be an integer, not 2.0"),
        ([(2, {"timeout": 0})], "ValueError", "timeout must be positive, not 0"),
        ([(2, {}), (2, {"timeout": -1})], "ValueError", "timeout must be positive"),
        (
            [(2, {"placement": "together"})],
            "ValueError",
            "'replicas_together', not 'together'",
        ),
        # A DisagreementError on those that are right.
        ([(2, {}), (3, {})], "ValueError", "n_pipeline is 3, but 4 ranks"),
        ([(2, {}), (1, {})], "ValueError", "rank 0 has n_pipeline=2, but rank 1 has 1"),
        (
            [(2, {}), (2, {"placement": "replicas_together"})],
            "ValueError",
            "rank 0 has placement='stages_together', but rank 1 has 'replicas_tog",
        ),
    ],
)
def test_is_refused_on_every_rank(arguments, error, message):
    assert_on_ranks(N_RANKS, wrong, arguments, error, message)


def no_communicator(comm):
    Grid(np.zeros(3), 1)


def one_is_late(comm, for_what):
    """Lets the last rank come to nothing, or agree and leave before the split."""
    # One that starts late is not one that does not come.
    comm.Barrier()
    if comm.rank < N_RANKS - 1:
        Grid(comm, 2, timeout=1)
    if for_what == "the split":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grid_module, "split", lambda *_: time.sleep(30))
            Grid(comm, 2, timeout=1)
    time.sleep(30)


def test_what_is_no_communicator_is_refused():
    result = refused_on_ranks(2, no_communicator)
    assert "comm must be a ChainerMN communicator or an mpi4py one" in result.output


@pytest.mark.parametrize("for_what", ["the start", "the split"])
def test_a_rank_that_does_not_come_is_named(for_what):
    output = refused_on_ranks(N_RANKS, one_is_late, for_what).output
    found = re.search(r"StallError: waited \d s for (.*)", output)
    assert found and "rank 3 to make the grid" in found[1], output
