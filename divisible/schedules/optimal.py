"""The shortest schedule for given costs, by a solver, with a proof of how short.

::

    list schedule --> its bound, reached? done
                  --> a solver, for some seconds --> a shorter order, a higher bound
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from divisible.schedules import constraint_solver, integer_solver
from divisible.schedules.costs import Costs
from divisible.schedules.list_scheduling import limits_of_ranks, list_schedule
from divisible.schedules.lower_bound import above
from divisible.schedules.order_problem import OrderProblem
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate

#: The solvers by name, the one that proves more first.
SOLVERS = {"cp_sat": constraint_solver, "highs": integer_solver}
# A schedule that is longer than its bound by no more than rounding is the shortest.
_ROUNDING = 1e-9


class FoundSchedule(NamedTuple):
    """A schedule, and how near it is to the shortest one.

    Attributes:
        schedule: The schedule.
        makespan: Its seconds, as `simulate` finds them.
        bound: Seconds that no schedule goes below, under the same limit of memory.
        solver: The name of the solver that was asked. ``None`` if none was: the list
            schedule reached the bound or is too large, or there was no time.
    """

    schedule: Schedule
    makespan: float
    bound: float
    solver: str | None

    @property
    def gap(self) -> float:
        """The part by which the schedule is above the bound: 0.02 for 2 %."""
        return self.makespan / self.bound - 1 if self.bound else 0.0

    def __str__(self) -> str:
        return f"{self.schedule.name}: {self.makespan:.6g} s, {above(self.gap)}"


def optimal_schedule(
    costs: Costs,
    n_microbatches: int,
    memory: float | Sequence[float] | None = None,
    stage_ranks: Sequence[int] | None = None,
    seconds: float = 30.0,
    *,
    n_stages: int | None = None,
    solver: str | None = None,
) -> FoundSchedule:
    """Searches the shortest schedule for measured costs under a limit of memory.

    Finding it is NP-hard. A solver improves the schedule of
    `divisible.schedules.list_schedule`, and proves a lower bound, until both meet or
    the time is over. So the result is never longer than the list schedule. All
    backwards are split into I and W, since B is only one way to order them.

    CP-SAT of OR-Tools proves far more than HiGHS where memory is scarce or there are
    many actions. It is an extra: ``pip install 'divisible[solver]'``. HiGHS is a part
    of SciPy.

    Times of a disk, and what groups of microbatches would save, do not enter the
    search.

    Args:
        costs: Seconds of each stage and edge.
        n_microbatches: Number of microbatches.
        memory: Number of microbatches that a rank may hold at once, as the
            ``memory_limit`` of `divisible.schedules.list_schedule`. No limit by
            default.
        stage_ranks: For each stage its rank; one stage on each rank by default.
        seconds: Seconds for the solver. With 0 none is asked.
        n_stages: Number of stages, if neither ``costs`` nor ``stage_ranks`` has it.
        solver: ``'cp_sat'`` or ``'highs'``. By default CP-SAT if it is installed, and
            HiGHS otherwise. CP-SAT takes up to 20,000 actions, and HiGHS 2,000; for
            more, the result is the list schedule with its bound.

    Returns:
        FoundSchedule: The schedule, its ``makespan``, the ``bound`` and the ``gap``.

    Raises:
        ImportError: If ``solver`` is ``'cp_sat'``, which is not installed.
        ScheduleError: If the number of stages is unknown or a limit is less than 1.
        ValueError: If ``solver`` is unknown, or ``seconds`` is negative or no number.

    Example:
        >>> costs = Costs(forward=1, backward_input=1, backward_weight=2)
        >>> found = optimal_schedule(costs, n_microbatches=4, memory=2, n_stages=3)
        >>> print(found)
        optimal: 20 s, at most 0.0% above the bound
        >>> simulate(list_schedule(costs, 4, 2, n_stages=3), costs).makespan
        21.0
    """
    deadline = time.monotonic() + _checked(seconds)
    name = _chosen(solver)
    known = list_schedule(costs, n_microbatches, memory, stage_ranks, n_stages)
    makespan = simulate(known, costs).makespan
    limits = limits_of_ranks(memory, known.stage_ranks, n_microbatches)
    problem = OrderProblem(known, costs, limits)
    bound = min(problem.bound(), makespan)
    left = deadline - time.monotonic()
    is_shortest = makespan <= bound * (1 + _ROUNDING)
    if is_shortest or left <= 0 or len(known) > SOLVERS[name].MOST_ACTIONS:
        return FoundSchedule(known, makespan, bound, None)
    starts, proved = SOLVERS[name].solve(problem, makespan, bound, left)
    other = None if starts is None else problem.ordered(starts)
    if other is not None:
        seconds_of_other = simulate(other, costs).makespan
        if seconds_of_other < makespan:
            known, makespan = other, seconds_of_other
    return FoundSchedule(known, makespan, min(max(bound, proved), makespan), name)


def _checked(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be 0 or more, not {seconds!r}")
    return seconds


def _chosen(solver: str | None) -> str:
    """Returns the name of the solver to ask."""
    has_cp_sat = importlib.util.find_spec("ortools") is not None
    if solver is None:
        return "cp_sat" if has_cp_sat else "highs"
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
    if solver == "cp_sat" and not has_cp_sat:
        raise ImportError(
            "solver='cp_sat' needs OR-Tools, which is not installed: pip install"
            " 'divisible[solver]', or use solver='highs'"
        )
    return solver
