"""The choice of an order: actions, what each one needs, and the memory of the ranks.

Every F, I and W of a minibatch has a duration. Some actions need others, and each rank
runs one at a time. An order of the actions on each rank gives a start to each action,
and a start to each action gives an order.

Equal microbatches are interchangeable. The k-th F of any stage may be that of the k-th
microbatch, and so may its k-th I and W. For when a stage starts its k-th F, the stage
before has at least k results, so the k-th of them is there. So each stage runs its
microbatches in turn. An order only says how F, I and W of a rank are merged::

    0F0 -> 0F1 -> 0F2 -> 0F3           where the rank holds two microbatches at most:
    0I0 -> 0I1 -> 0I2 -> 0I3           0W0 -> 0F2, 0W1 -> 0F3
    0W0 -> 0W1 -> 0W2 -> 0W3
"""

from __future__ import annotations

import heapq

import numpy as np

from divisible.schedules.actions import FORWARD, WEIGHT
from divisible.schedules.costs import Costs
from divisible.schedules.dependencies import earliest_starts, locate
from divisible.schedules.lower_bound import (
    greatest_sum,
    longest_ways,
    message_seconds,
    precedences,
)
from divisible.schedules.schedule import Schedule


class OrderProblem:
    """The actions of a known schedule, for which a better order is sought.

    Args:
        known: A valid schedule without B, R and groups.
        costs: Costs of stages and edges.
        limits: For each rank, the number of microbatches that its stages may hold in
            total. The known schedule keeps to it.

    Attributes:
        known (Schedule): The known schedule; arrays below have an entry for each of
            its actions.
        rank, duration (numpy.ndarray): The rank and the seconds of each action.
        source, target, lag (numpy.ndarray): Pairs of actions of which the first one
            comes first, and the seconds between its end and the start of the second.
        limits (dict): The limits of those ranks for which the pairs do not ensure it.
        chains (list of numpy.ndarray): Actions that run one after the other, in order.
    """

    def __init__(self, known: Schedule, costs: Costs, limits: list[int]) -> None:
        self.known = known
        self.rank = known.action_ranks
        self.duration = costs.durations_of(known)
        pairs = precedences(known)
        transfer, latency = message_seconds(pairs, costs, known)
        seconds = costs.durations(known.n_stages, known.n_microbatches)
        forward, _, weight, _ = table = locate(known)
        is_alike = bool((seconds == seconds[:, :, :1]).all())
        self.chains = [*table[:3].reshape(-1, known.n_microbatches)] if is_alike else []
        sources = [pairs.source, *(chain[:-1] for chain in self.chains)]
        targets = [pairs.target, *(chain[1:] for chain in self.chains)]
        self.limits = {}
        for rank, limit in enumerate(limits):
            stages = known.rank_stages(rank)
            if limit >= known.n_microbatches * len(stages):
                continue
            if len(stages) == 1 and is_alike:
                sources.append(weight[stages[0], :-limit])
                targets.append(forward[stages[0], limit:])
            else:
                self.limits[rank] = limit
        self.source, self.target = np.concatenate(sources), np.concatenate(targets)
        self.lag = np.zeros(self.source.size)
        self.lag[: transfer.size] = transfer + latency

    def heads(self, duration: np.ndarray, lag: np.ndarray) -> np.ndarray:
        """Returns the longest way to each action.

        Args:
            duration: The durations of the actions, in any unit.
            lag: The lags of the pairs.
        """
        return longest_ways(self.source, self.target, lag, duration)

    def tails(self, duration: np.ndarray, lag: np.ndarray) -> np.ndarray:
        """Returns the longest way from each action to the end.

        Args:
            duration: The durations of the actions, in any unit.
            lag: The lags of the pairs.
        """
        return longest_ways(self.target, self.source, lag, duration)

    def known_starts(self, duration: np.ndarray, lag: np.ndarray) -> np.ndarray:
        """Returns the starts in the known order.

        Args:
            duration: The durations of the actions, in any unit.
            lag: The lags of the pairs.
        """
        # An action sends one result at most, so there is one lag for each.
        delay = np.zeros(duration.size)
        np.maximum.at(delay, self.source, lag)
        return earliest_starts(self.known, duration, delay)

    def bound(self) -> float:
        """Returns seconds that no order goes below; see `lower_bound`."""
        return greatest_sum(
            self.rank,
            self.heads(self.duration, self.lag),
            self.duration,
            self.tails(self.duration, self.lag),
        )

    def ordered(self, start: np.ndarray) -> Schedule | None:
        """Returns the schedule of some starts.

        Actions are taken in the order of their starts, and the shorter one of two with
        the same start, because it may take no time. Each is taken as soon as what it
        needs has been taken, and its rank has room, so rounding of the starts does no
        harm.

        Args:
            start: The start of each action, in any unit.

        Returns:
            The schedule; ``None`` if the ranks have no room in this order.
        """
        known = self.known
        missing = np.bincount(self.target, minlength=start.size).tolist()
        users: list[list[int]] = [[] for _ in missing]
        for one, other in zip(self.source.tolist(), self.target.tolist()):
            users[one].append(other)
        rank, kind = self.rank.tolist(), known.kind.tolist()
        turn = list(zip(start.tolist(), self.duration.tolist(), range(start.size)))
        room = dict(self.limits)
        ready = [one for one, count in zip(turn, missing) if not count]
        heapq.heapify(ready)
        # Forwards that are ready, on ranks that are full.
        waiting: list[tuple[float, float, int]] = []
        taken: list[int] = []
        while ready:
            action = heapq.heappop(ready)[-1]
            mine = rank[action]
            if mine in room and kind[action] == FORWARD:
                if not room[mine]:
                    waiting.append(turn[action])
                    continue
                room[mine] -= 1
            taken.append(action)
            if mine in room and kind[action] == WEIGHT:
                room[mine] += 1
                for other in waiting:
                    heapq.heappush(ready, other)
                waiting.clear()
            for user in users[action]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, turn[user])
        if waiting:
            return None
        order = np.array(taken)
        order = order[np.argsort(self.rank[order], kind="stable")]
        return Schedule.from_arrays(
            known.stage[order],
            known.kind[order],
            known.microbatch[order],
            known.offsets,
            known.stage_ranks,
            known.n_microbatches,
            "optimal",
        )
