import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules import integer_solver, optimal, optimal_schedule
from divisible.schedules.actions import ScheduleError
from divisible.schedules.costs import Costs
from divisible.schedules.list_scheduling import limits_of_ranks, list_schedule
from divisible.schedules.simulator import simulate
from tests.support.examples import examples
from tests.support.exhaustive import shortest

HAS_CP_SAT = importlib.util.find_spec("ortools") is not None
solvers = pytest.mark.parametrize(
    "solver",
    [
        "highs",
        pytest.param(
            "cp_sat",
            marks=pytest.mark.skipif(not HAS_CP_SAT, reason="needs the extra solver"),
        ),
    ],
)
# The number of microbatches, the ranks of the stages, and a limit: all orders of these
# can be tried.
TINY = [
    (3, [0], 2),
    (2, [0, 1], 1),
    (2, [0, 1], None),
    (3, [0, 1], 1),
    (1, [0, 1, 2], None),
    (2, [0, 1, 2], 1),
    (1, [0, 1, 1, 0], None),
    (2, [0, 1, 0], 1),
    (2, [0, 0], 1.5),
]


def check(found, costs, m, memory, stage_ranks):
    """Checks what holds of every result."""
    schedule = found.schedule
    report = schedule.validate()
    assert schedule.n_microbatches == m
    assert schedule.stage_ranks == tuple(stage_ranks)
    if memory is not None:
        assert np.all(report.held <= np.add(memory, 1e-9))
    assert simulate(schedule, costs).makespan == found.makespan
    first = list_schedule(costs, m, memory, stage_ranks)
    assert found.makespan <= simulate(first, costs).makespan
    assert 0 <= found.bound <= found.makespan


@solvers
@pytest.mark.parametrize("m, stage_ranks, memory", TINY)
@pytest.mark.parametrize("are_alike", [True, False])
def test_all_orders_of_tiny_cases(m, stage_ranks, memory, are_alike, solver):
    d = len(stage_ranks)
    random = np.random.RandomState(d + m)
    for _ in range(examples(3).max_examples):
        shape = (d, 1) if are_alike else (d, m)
        # A third of the times is 0.
        times = random.randint(0, 9, (3, *shape)) * random.randint(0, 3, (3, *shape))
        lags = random.randint(0, 5, (2, d - 1))
        # Microbatches of a tenth of a second are no multiples of a power of 2.
        costs = Costs(*np.broadcast_to(times / 10, (3, d, m)), *(lags / 10))
        found = optimal_schedule(costs, m, memory, stage_ranks, solver=solver)
        check(found, costs, m, memory, stage_ranks)
        limits = limits_of_ranks(memory, stage_ranks, m)
        least = shortest(costs, m, stage_ranks, limits)
        assert found.makespan == pytest.approx(least, rel=1e-6)
        assert found.gap < 1e-5


@solvers
@examples(15)
@given(data=st.data())
def test_never_worse_than_the_list_schedule(solver, data):
    ranks = data.draw(st.integers(1, 4))
    stage_ranks = data.draw(
        st.sampled_from([[*range(ranks)], [*range(ranks), *reversed(range(ranks))]])
    )
    m = data.draw(st.integers(1, 5))
    memory = data.draw(st.sampled_from([None, 1, 1.5, 2, 3]))
    seconds = st.floats(0.0, 1.0)
    each = st.lists(seconds, min_size=len(stage_ranks), max_size=len(stage_ranks))
    times = [data.draw(each) for _ in range(3)]
    costs = Costs(*times, transfer=data.draw(seconds), latency=data.draw(seconds))
    found = optimal_schedule(costs, m, memory, stage_ranks, 0.5, solver=solver)
    check(found, costs, m, memory, stage_ranks)


@solvers
def test_the_shortest_under_a_limit(solver):
    # ZB-H1 holds as much, and takes longer; the list schedule as well.
    costs = Costs(1, 1, 2)
    found = optimal_schedule(costs, 4, 2, n_stages=3, solver=solver)
    assert found.solver == solver and found.schedule.name == "optimal"
    assert (found.makespan, found.bound) == (20, pytest.approx(20))
    assert str(found) == "optimal: 20 s, at most 0.0% above the bound"


def test_limits_of_each_rank():
    costs = Costs(1, 1, 1)
    found = optimal_schedule(costs, 4, [3, 1, 2], n_stages=3)
    check(found, costs, 4, [3, 1, 2], range(3))


def test_a_list_schedule_that_reaches_the_bound_needs_no_solver(monkeypatch):
    monkeypatch.setattr(optimal, "SOLVERS", {"highs": None})
    found = optimal_schedule(Costs(1, 1, 1), 8, n_stages=4, solver="highs")
    assert (found.makespan, found.bound, found.solver) == (27, 27, None)


@pytest.mark.parametrize("seconds, most", [(0, 2_000), (30, 50)])
def test_without_time_or_with_too_many_actions(seconds, most, monkeypatch):
    monkeypatch.setattr(integer_solver, "MOST_ACTIONS", most)
    found = optimal_schedule(
        Costs(1, 1, 2), 5, 3, n_stages=4, seconds=seconds, solver="highs"
    )
    assert found.solver is None and found.schedule.name == "list"
    assert 0 < found.gap < 0.5


def test_no_time_at_all():
    found = optimal_schedule(Costs(0, 0, 0), 2, n_stages=2)
    assert found.makespan == found.bound == found.gap == 0


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({}, ScheduleError, "number of stages is unknown"),
        ({"n_stages": 2, "memory": 0.5}, ScheduleError, "needs 1"),
        ({"n_stages": 2, "seconds": -1}, ValueError, "seconds must be 0 or more"),
        ({"n_stages": 2, "solver": "cplex"}, ValueError, "one of cp_sat, highs"),
    ],
)
def test_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        optimal_schedule(Costs(1, 1, 1), 4, **options)


def test_a_solver_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'divisible\[solver\]'"):
        optimal_schedule(Costs(1, 1, 1), 4, n_stages=2, solver="cp_sat")
    found = optimal_schedule(Costs(1, 1, 2), 4, 2, n_stages=3)
    assert found.solver == "highs"
