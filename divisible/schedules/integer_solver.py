"""The shortest order by mixed integer programming: HiGHS, which SciPy contains.

For two actions of a rank whose order is open there is a variable that is 1 if the first
one comes first. It switches two inequalities on and off::

    start[b] >= start[a] + duration[a] - slack (1 - first[a, b])
    start[a] >= start[b] + duration[b] - slack first[a, b]

Source: Manne, On the job-shop scheduling problem, Operations Research 8, 1960; Huangfu
and Hall, Parallelizing the dual revised simplex method, 2018, for HiGHS.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import FORWARD, WEIGHT
from divisible.schedules.order_problem import OrderProblem

#: The largest number of actions for which a model is made.
MOST_ACTIONS = 2_000
# Differences of times that are rounding, relative to the makespan.
_ROUNDING = 1e-9
# Tolerance of the solver for dual solutions, from which its bound follows.
_TOLERANCE = 1e-6


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
    """
    # SciPy is slow to load, and schedules do not need it.
    from scipy.optimize import Bounds, LinearConstraint, milp

    # In units of the known makespan, which suits the tolerances of the solver.
    duration, lag = problem.duration / upper, problem.lag / upper
    head = problem.heads(duration, lag)
    last = 1 + _ROUNDING - problem.tails(duration, lag) - duration
    n = duration.size
    first = _First(problem, head + duration, last)
    rows = _Rows(n + 1 + first.n_open)
    one, other = problem.source, problem.target
    rows.add([(other, 1), (one, -1)], duration[one] + lag)
    every = np.arange(n)
    rows.add([(np.full(n, n), 1), (every, -1)], duration)
    # Orders that heads and tails leave no choice for, and then the open ones.
    one, other = np.nonzero(first.is_sure)
    rows.add([(other, 1), (one, -1)], duration[one])
    one, other = first.pairs
    switch = n + 1 + np.arange(first.n_open)
    slack = last[one] + duration[one] - head[other]
    rows.add([(other, 1), (one, -1), (switch, -slack)], duration[one] - slack)
    slack = last[other] + duration[other] - head[one]
    rows.add([(one, 1), (other, -1), (switch, slack)], duration[other])
    _add_chains(rows, problem, first)
    _add_limits(rows, problem, first)

    cost = np.zeros(n + 1 + first.n_open)
    cost[n] = 1
    found = milp(
        cost,
        integrality=np.concatenate([np.zeros(n + 1), np.ones(first.n_open)]),
        bounds=Bounds(
            np.concatenate([head, [lower / upper], np.zeros(first.n_open)]),
            np.concatenate([last, [1 + _ROUNDING], np.ones(first.n_open)]),
        ),
        constraints=LinearConstraint(rows.matrix(), rows.least(), np.inf),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    bound = lower
    if found.mip_dual_bound is not None:
        bound = max(lower, (found.mip_dual_bound - _TOLERANCE) * upper)
    # Starts that differ by the solver's tolerance are the same.
    return (None if found.x is None else found.x[:n].round(5)), bound


class _First:
    """Whether one action comes before another one on the same rank.

    The answer for actions ``a`` and ``b`` is ``sure[a, b]``, plus ``sign[a, b]`` times
    the variable ``variable[a, b]``.

    Args:
        problem: The actions.
        soonest: The earliest end of each action.
        last: The latest start of each action.
    """

    def __init__(
        self, problem: OrderProblem, soonest: np.ndarray, last: np.ndarray
    ) -> None:
        n = soonest.size
        same = problem.rank[:, None] == problem.rank
        np.fill_diagonal(same, False)
        follows = np.zeros((n, n), bool)
        follows[problem.source, problem.target] = True
        length = 1
        while length < n:
            follows |= (follows.astype(np.float32) @ follows.astype(np.float32)) > 0
            length *= 2
        # An action that cannot come second comes first.
        tight = soonest[:, None] > last + _ROUNDING
        self.is_sure = same & (follows | tight.T)
        is_open = same & ~(self.is_sure | self.is_sure.T)
        self.pairs = np.nonzero(np.triu(is_open))
        self.n_open = len(self.pairs[0])
        self.sure = self.is_sure.astype(float)
        self.sign = np.zeros((n, n))
        self.variable = np.zeros((n, n), np.int64)
        one, other = self.pairs
        self.variable[one, other] = self.variable[other, one] = np.arange(self.n_open)
        self.sign[one, other], self.sign[other, one] = 1, -1
        self.sure[other, one] = 1


class _Rows:
    """Inequalities, each a sum of variables that is at least a number."""

    def __init__(self, n_variables: int) -> None:
        self._n_variables = n_variables
        self._n_rows = 0
        self._row: list[np.ndarray] = []
        self._column: list[np.ndarray] = []
        self._factor: list[np.ndarray] = []
        self._least: list[np.ndarray] = []

    def add(self, terms: list[tuple[np.ndarray, ArrayLike]], least: np.ndarray) -> None:
        """Adds rows of equally many terms.

        Args:
            terms: For each term its variable in each row, and its factor.
            least: The least sum of each row.
        """
        rows = self._n_rows + np.arange(least.size)
        for column, factor in terms:
            self._row.append(rows)
            self._column.append(column)
            self._factor.append(np.broadcast_to(factor, least.shape))
        self._least.append(least)
        self._n_rows += least.size

    def matrix(self):
        """Returns the factors, as a sparse matrix."""
        from scipy.sparse import coo_matrix

        entries = np.concatenate(self._factor)
        places = np.concatenate(self._row), np.concatenate(self._column)
        shape = self._n_rows, self._n_variables
        return coo_matrix((entries, places), shape=shape).tocsr()

    def least(self) -> np.ndarray:
        """Returns the least sum of each row."""
        return np.concatenate(self._least)


def _add_chains(rows: _Rows, problem: OrderProblem, first: _First) -> None:
    """Adds that what precedes an action precedes all later ones of its chain."""
    n = problem.duration.size
    for chain in problem.chains:
        for one, other in zip(chain[:-1].tolist(), chain[1:].tolist()):
            there = np.flatnonzero(first.sign[:, one] * first.sign[:, other])
            rows.add(
                [
                    (n + 1 + first.variable[there, other], first.sign[there, other]),
                    (n + 1 + first.variable[there, one], -first.sign[there, one]),
                ],
                first.sure[there, one] - first.sure[there, other],
            )


def _add_limits(rows: _Rows, problem: OrderProblem, first: _First) -> None:
    """Adds that a rank with a limit has room for each of its forwards."""
    n, kind = problem.duration.size, problem.known.kind
    for rank, limit in problem.limits.items():
        mine = problem.rank == rank
        forwards = np.flatnonzero(mine & (kind == FORWARD))
        weights = np.flatnonzero(mine & (kind == WEIGHT))
        for action in forwards.tolist():
            terms, least = [], 1.0 - limit
            for others, sign in ((forwards, 1), (weights, -1)):
                # Forwards that came first are held, unless their W came first as well.
                least += sign * first.sure[others, action].sum()
                terms += [
                    (np.array([n + 1 + variable]), -sign * factor)
                    for variable, factor in zip(
                        first.variable[others, action].tolist(),
                        first.sign[others, action].tolist(),
                    )
                    if factor
                ]
            rows.add(terms, np.array([least]))
