"""The search for columns: which processors stand above each other.

:func:`table` and :func:`ascending` are Fig. 7 of Ozawa et al., for processors in
ascending order of ability. ``t(C, q)`` is the cost of the slowest of ``C`` columns of
the first ``q`` processors. The last column begins after the first ``q'`` processors::

    0          q'         q         N
    |-- C - 1 --|-- last --|...             t(C, q) = min over q' of
       columns     column                       max(t'(q', q), t(C - 1, q'))

The ascending order is not always the best. :func:`any_order` lets any processors share
a column: up to `EXACT` processors by a dynamic program over sets, more by exchanges
that start from the ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterogeneous.costs import CommunicationCost

#: Number of processors up to which all sets are tried.
EXACT = 10
#: For more processors, the number of column counts for which exchanges are tried: those
#: that are best in ascending order.
_IMPROVED = 12

Columns = list[list[int]]


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        columns: Positions in the sequence of abilities, column by column.
        by_columns: Total cost of the best columns, for each number of columns from 1
            on.
    """

    columns: Columns
    by_columns: np.ndarray


def table(abilities: Sequence[float], cost: CommunicationCost) -> np.ndarray:
    """Returns ``t(C, q)`` at ``[C - 1, q - 1]``: equation (10).

    Args:
        abilities: Abilities of the sum 1; columns are cut from them in this order.
        cost: Cost of columns.

    Returns:
        float64 of shape (N, N); infinity where there are fewer processors than columns.
    """
    costs = _costs_of_columns(abilities, cost)
    n = len(costs) - 1
    t = np.full((n, n), np.inf)
    t[0] = costs[0, 1:]
    for c in range(1, n):
        # All q' are computed at once: rows from c on, for columns from c + 1 on.
        before = t[c - 1, c - 1 : n - 1, np.newaxis]
        t[c, c:] = np.maximum(costs[c:n, c + 1 :], before).min(axis=0)
    return t


def ascending(
    abilities: Sequence[float], cost: CommunicationCost, t: np.ndarray
) -> Found:
    """Finds the columns of least total cost, in the order of the abilities.

    Args:
        abilities: Abilities of the sum 1, in the order of the table.
        cost: Cost of columns.
        t: The table of :func:`table`.
    """
    by_columns = cost.total(t[:, -1], np.arange(1, len(t) + 1))
    n_columns = int(np.argmin(by_columns)) + 1
    return Found(_cut(abilities, cost, t, n_columns), by_columns)


def any_order(
    abilities: Sequence[float], cost: CommunicationCost, t: np.ndarray
) -> Found:
    """Finds columns of any processors; never worse than :func:`ascending`.

    Args:
        abilities: Abilities of the sum 1, ascending.
        cost: Cost of columns.
        t: The table of :func:`table`.

    Returns:
        The best columns of all, for up to `EXACT` processors.
    """
    if len(t) <= EXACT:
        return _best_sets(np.asarray(abilities, np.float64), cost)
    by_columns = cost.total(t[:, -1], np.arange(1, len(t) + 1))
    best = ascending(abilities, cost, t).columns
    least = by_columns.min()
    for i in np.argsort(by_columns, kind="stable")[:_IMPROVED]:
        columns = _cut(abilities, cost, t, int(i) + 1)
        slowest = _exchange(np.asarray(abilities, np.float64), cost, columns)
        by_columns[i] = min(by_columns[i], cost.total(slowest, int(i) + 1))
        if by_columns[i] < least:
            least, best = by_columns[i], columns
    return Found([sorted(column) for column in best], by_columns)


def _costs_of_columns(
    abilities: Sequence[float], cost: CommunicationCost
) -> np.ndarray:
    """Returns ``t'(q', q)`` at ``[q', q]``; infinity for columns without processors."""
    ends = np.concatenate([[0.0], np.cumsum(abilities)])
    sizes = np.arange(len(ends)) - np.arange(len(ends))[:, np.newaxis]
    costs = np.asarray(cost.column(ends - ends[:, np.newaxis], sizes), np.float64)
    return np.where(sizes > 0, costs, np.inf)


def _cut(
    abilities: Sequence[float], cost: CommunicationCost, t: np.ndarray, n_columns: int
) -> Columns:
    """Returns the columns of an entry of the table, found from the last one back."""
    costs = _costs_of_columns(abilities, cost)
    cuts = [len(t)]
    for c in range(n_columns - 1, 0, -1):
        begins = np.arange(c, cuts[-1])
        each = np.maximum(costs[begins, cuts[-1]], t[c - 1, begins - 1])
        cuts.append(int(begins[np.argmin(each)]))
    cuts.append(0)
    return [list(range(a, b)) for b, a in zip(cuts, cuts[1:])][::-1]


def _best_sets(abilities: np.ndarray, cost: CommunicationCost) -> Found:
    """Returns the best of all partitions into sets, by a dynamic program over sets.

    Bits of a number stand for the processors of a set. All columns that hold the lowest
    processor of a set are tried; the other processors then have one column less.
    """
    n = len(abilities)
    everything = np.arange(2**n)
    has = everything[:, np.newaxis] >> np.arange(n) & 1
    costs = np.asarray(cost.column(has @ abilities, has.sum(axis=1)), np.float64)
    # best[C, set], infinity where there are fewer processors than columns.
    best = np.full((n + 1, 2**n), np.inf)
    best[0, 0] = 0.0

    def choices(of: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns first columns, and the cost of each by the number of columns."""
        lowest = of & -of
        firsts = everything[(everything & ~(of ^ lowest)) == 0] | lowest
        return firsts, np.maximum(costs[firsts], best[:-1, of ^ firsts])

    for of in range(1, 2**n):
        best[1:, of] = choices(of)[1].min(axis=1)
    by_columns = cost.total(best[1:, -1], np.arange(1, n + 1))
    left, columns = 2**n - 1, []
    for c in range(int(np.argmin(by_columns)), -1, -1):
        firsts, each = choices(left)
        first = int(firsts[np.argmin(each[c])])
        columns.append(np.flatnonzero(has[first]).tolist())
        left ^= first
    return Found(columns, by_columns)


def _exchange(
    abilities: np.ndarray, cost: CommunicationCost, columns: Columns
) -> float:
    """Improves columns in place, and returns the cost of the slowest afterwards.

    The slowest column gives a processor away, or exchanges one, so that both columns
    cost less than the slowest did. This is repeated until no exchange helps.
    """
    sums = np.array([abilities[column].sum() for column in columns])
    sizes = np.array([len(column) for column in columns])
    of = np.empty(len(abilities), np.int64)
    for c, column in enumerate(columns):
        of[column] = c
    while True:
        costs = np.asarray(cost.column(sums, sizes), np.float64)
        c = int(np.argmax(costs))
        if sizes[c] == 1:
            break
        mine, theirs = np.flatnonzero(of == c), np.flatnonzero(of != c)
        given = abilities[mine, np.newaxis]
        # Rows stand for the processor that leaves. The first columns of the matrix
        # stand for the column that it joins, the others for a processor that it is
        # exchanged for.
        others = np.concatenate([np.arange(len(columns)), of[theirs]])
        back = np.concatenate([np.zeros(len(columns)), abilities[theirs]])
        is_move = np.arange(len(others)) < len(columns)
        after = np.maximum(
            cost.column(sums[c] - given + back, sizes[c] - is_move),
            cost.column(sums[others] + given - back, sizes[others] + is_move),
        )
        after[:, c] = np.inf
        i, j = np.unravel_index(np.argmin(after), after.shape)
        # Less by more than rounding: otherwise two could change places for ever.
        if not after[i, j] < costs[c] * (1 - 1e-12):
            break
        to = others[j]
        sums[c] += back[j] - given[i, 0]
        sums[to] += given[i, 0] - back[j]
        of[mine[i]] = to
        if is_move[j]:
            sizes[c] -= 1
            sizes[to] += 1
        else:
            of[theirs[j - len(columns)]] = c
    columns[:] = [np.flatnonzero(of == c).tolist() for c in range(len(columns))]
    sums = [abilities[column].sum() for column in columns]
    return float(np.max(cost.column(np.array(sums), sizes)))
