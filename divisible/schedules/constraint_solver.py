"""The shortest order by constraint programming: CP-SAT of OR-Tools, an optional extra.

Times become whole numbers of a unit, a power of 2 in seconds. The known schedule takes
some 2**30 of them. They are rounded down, which never makes an order longer. So a bound
on the rounded times is one on the times themselves. An action that takes no time gets a
unit, so that starts show the order. The bound is less by a unit for each such action.

Source: Perron and Furnon, OR-Tools, https://developers.google.com/optimization; the
model is that of a job shop, with an interval for each action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from divisible.schedules.dependencies import locate
from divisible.schedules.order_problem import OrderProblem

#: The largest number of actions for which a model is made.
MOST_ACTIONS = 20_000
# Bits of the times of the known schedule.
_BITS = 30


def solve(
    problem: OrderProblem, upper: float, lower: float, seconds: float
) -> tuple[np.ndarray | None, float]:
    """Searches the shortest order.

    Args:
        problem: The actions.
        upper: Seconds of the known schedule.
        lower: Seconds that no order goes below.
        seconds: Seconds for the search.

    Returns:
        The starts of the actions in the best order found, in any unit, or ``None``; and
        seconds that no order goes below.

    Raises:
        ImportError: If OR-Tools is not installed.
    """
    # An optional package, slow to load.
    from ortools.sat.python import cp_model

    unit = 2.0 ** (math.ceil(math.log2(upper)) - _BITS)
    length, lag = (np.floor(x / unit) for x in (problem.duration, problem.lag))
    is_moment = length == 0
    length[is_moment] = 1
    hint = problem.known_starts(length, lag).astype(np.int64).tolist()
    horizon = int((hint + length).max())
    first = problem.heads(length, lag).astype(np.int64).tolist()
    last = (horizon - problem.tails(length, lag) - length).astype(np.int64).tolist()
    length, lag = length.astype(np.int64).tolist(), lag.astype(np.int64).tolist()

    model = cp_model.CpModel()
    start = [model.new_int_var(a, b, "") for a, b in zip(first, last)]
    interval = [
        model.new_fixed_size_interval_var(begin, size, "")
        for begin, size in zip(start, length)
    ]
    end = [begin + size for begin, size in zip(start, length)]
    for one, other, between in zip(
        problem.source.tolist(), problem.target.tolist(), lag
    ):
        model.add(start[other] >= end[one] + between)
    offsets = problem.known.offsets.tolist()
    for begin, stop in zip(offsets[:-1], offsets[1:]):
        model.add_no_overlap(interval[begin:stop])
    for rank, limit in problem.limits.items():
        # A microbatch is held from the start of its F to the end of its W.
        held = [
            model.new_interval_var(
                start[one], model.new_int_var(0, horizon, ""), end[other], ""
            )
            for one, other in _first_and_last(problem, rank)
        ]
        model.add_cumulative(held, [1] * len(held), limit)
    makespan = model.new_int_var(min(math.floor(lower / unit), horizon), horizon, "")
    for one in end:
        model.add(makespan >= one)
    model.minimize(makespan)
    for begin, value in zip(start, hint):
        model.add_hint(begin, value)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    bound = (solver.best_objective_bound - is_moment.sum()) * unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    return np.array([solver.value(begin) for begin in start]), bound


def _first_and_last(problem: OrderProblem, rank: int) -> Iterator[tuple[int, int]]:
    """Yields the F and the W of each microbatch of each stage on a rank."""
    forward, _, weight, _ = locate(problem.known)
    for stage in problem.known.rank_stages(rank):
        yield from zip(forward[stage].tolist(), weight[stage].tolist())
