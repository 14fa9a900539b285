"""Seconds that the stages of a rank compute, from the runner's records."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from divisible.planning.layer_cost import LayerCost
from divisible.planning.profile import Profile
from divisible.schedules.actions import Action
from divisible.schedules.rank_program import RankProgram, Record
from heterogeneous.estimates import of_now


class Seen(NamedTuple):
    """Times of the last minibatches on one rank.

    Attributes:
        of_stages: Seconds per sample, the oldest first, by the stage's number.
        step_seconds: Seconds from a step's first action here to its last, waits
            included.
        n_samples: Median number of samples in a minibatch on this rank.
    """

    of_stages: dict[int, list[float]]
    step_seconds: float
    n_samples: float

    @property
    def n_minibatches(self) -> int:
        """Number of minibatches that the times belong to."""
        return min(map(len, self.of_stages.values()))


class _Places(NamedTuple):
    """Positions of a rank's actions in its records, the same in each minibatch.

    Attributes:
        program: Program of the rank.
        stages: Numbers of its stages, in order.
        actions: Positions of the actions in the program.
        columns: Position in ``stages`` of each action's stage.
    """

    program: RankProgram
    stages: list[int]
    actions: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, program: RankProgram) -> _Places:
        """Returns the positions of the actions in a program."""
        actions = [
            (i, operation.stage)
            for i, operation in enumerate(program.operations)
            if isinstance(operation, Action)
        ]
        stages = sorted({stage for _, stage in actions})
        positions = np.array([i for i, _ in actions])
        columns = np.array([stages.index(stage) for _, stage in actions])
        return cls(program, stages, positions, columns)

    def busy_seconds(self, record: Record) -> np.ndarray:
        """Returns the seconds that each stage was busy."""
        busy = record.durations[self.actions]
        return np.bincount(self.columns, busy, len(self.stages))


class StageTimes:
    """Seconds that each of a rank's stages was busy in the last minibatches.

    A stage is busy while it computes, not while the rank waits or sends. To record a
    minibatch takes some microseconds.

    Args:
        n_kept (int): Number of minibatches to keep.
    """

    def __init__(self, n_kept: int) -> None:
        self._rows: deque[np.ndarray] = deque(maxlen=n_kept)
        # Seconds of whole steps per sample, waits included; and numbers of samples.
        self._spans: deque[float] = deque(maxlen=n_kept)
        self._sizes: deque[int] = deque(maxlen=n_kept)
        self._places: _Places | None = None

    def __len__(self) -> int:
        """Returns the number of minibatches kept."""
        return len(self._rows)

    def note(self, record: Record, n_samples: int) -> None:
        """Records the times of a minibatch.

        Args:
            record (Record): Times of this rank's actions.
            n_samples (int): Number of samples in the minibatch; without any it is left
                out.
        """
        if self._places is None or record.program is not self._places.program:
            self._places = _Places.of(record.program)
            # A new program means that layers have moved.
            self.clear()
        if n_samples > 0:
            self._rows.append(self._places.busy_seconds(record) / n_samples)
            self._spans.append(record.span / n_samples)
            self._sizes.append(n_samples)

    def clear(self) -> None:
        """Drops all minibatches."""
        self._rows.clear()
        self._spans.clear()
        self._sizes.clear()

    def keep_last(self, n: int) -> None:
        """Drops all minibatches except the last ``n``."""
        for each in (self._rows, self._spans, self._sizes):
            while len(each) > n:
                each.popleft()

    def seen(self) -> Seen | None:
        """Returns the times so far; ``None`` without any."""
        if self._places is None or not self._rows:
            return None
        columns = np.array(self._rows).T
        n_samples = float(np.median(self._sizes))
        a_step = np.median(like_the_newest(np.array(self._spans)))
        of_stages = dict(zip(self._places.stages, columns.tolist()))
        return Seen(of_stages, float(a_step) * n_samples, n_samples)


def under_load(
    said: Sequence[Mapping[int, Sequence[float]]], loads: Sequence[float]
) -> list[dict[int, list[float]]]:
    """Returns the seconds of ranks for the samples of their replicas.

    Args:
        said: Seconds per sample of each rank, by stage.
        loads: Samples of each rank's replica, relative to the largest replica.

    Example:
        >>> under_load([{0: [1.0]}, {0: [3.0, 4.0]}], [1.0, 0.5])
        [{0: [1.0]}, {0: [1.5, 2.0]}]
    """
    return [
        {stage: [load * each for each in times] for stage, times in theirs.items()}
        for theirs, load in zip(said, loads)
    ]


def together(
    said: Sequence[Mapping[int, Sequence[float]]], n_stages: int
) -> np.ndarray:
    """Joins the times of all ranks' stages.

    Args:
        said: Seconds of each rank, by stage. Of replicas, which have different samples,
            the slowest counts.
        n_stages (int): Number of stages in the pipeline.

    Returns:
        An array of the shape (n_minibatches, n_stages), with as many minibatches as all
        ranks have recorded.

    Example:
        >>> together([{0: [1.0, 2.0]}, {1: [3.0]}, {0: [4.0, 1.0]}, {1: [3.0]}], 2)
        array([[2., 3.]])
    """
    n = min(len(times) for theirs in said for times in theirs.values())
    found = np.zeros((n, n_stages))
    for theirs in said:
        for stage, times in theirs.items():
            found[:, stage] = np.maximum(found[:, stage], times[len(times) - n :])
    return found


def slowest_ranks(
    said: Sequence[Mapping[int, Sequence[float]]], places: Sequence[int]
) -> list[int]:
    """Returns the slowest rank for each place in a pipeline.

    Args:
        said: Seconds per sample of all ranks of all replicas, by stage.
        places: Number of each rank within its pipeline.

    Example:
        >>> said = [{0: [1.0]}, {1: [3.0]}, {0: [4.0]}, {1: [3.0]}]
        >>> slowest_ranks(said, places=[0, 1, 0, 1])
        [2, 1]
    """
    busy = [_busy(times) for times in said]
    found: dict[int, int] = {}
    for rank, place in enumerate(places):
        if busy[rank] > busy[found.setdefault(place, rank)]:
            found[place] = rank
    return [found[place] for place in sorted(found)]


def _busy(times: Mapping[int, Sequence[float]]) -> float:
    """Returns a rank's present seconds per sample, of all of its stages."""
    return sum(
        float(np.median(like_the_newest(np.asarray(of_stage))))
        for of_stage in times.values()
    )


def like_the_newest(seconds: np.ndarray) -> np.ndarray:
    """Returns the times like the newest ones, without a single long exception.

    Example:
        >>> like_the_newest(np.array([1, 1, 1, 1, 2, 2, 9, 2, 2.1])).tolist()
        [2.0, 2.0, 2.0, 2.1]
    """
    counted = seconds[of_now(seconds)]
    # With two kinds of times, none may be like their median.
    return counted if counted.size else seconds[-1:]


def busy_replicas(
    said: Sequence[Mapping[int, Sequence[float]]], replicas: Sequence[int]
) -> list[float]:
    """Returns the seconds per sample of each replica's busiest rank.

    Args:
        said: Seconds per sample of all ranks, by stage.
        replicas: Number of each rank's replica.

    Example:
        >>> said = [{0: [1.0, 1.1]}, {1: [2.0]}, {0: [4.0]}, {1: [6.0]}]
        >>> busy_replicas(said, [0, 0, 1, 1])
        [2.0, 6.0]
    """
    slowest: dict[int, float] = {}
    for replica, times in zip(replicas, said):
        slowest[replica] = max(_busy(times), slowest.get(replica, 0.0))
    return [slowest[replica] for replica in sorted(slowest)]


def profile_of(
    forwards: Sequence[Mapping[int, float]],
    busy: np.ndarray,
    cuts: Sequence[int],
    n_samples: int,
) -> Profile:
    """Returns a profile from times measured in training.

    A stage's time is divided among its layers in proportion to their forwards. A third
    of a layer's time is for forward, and a third for each part of backward.

    Args:
        forwards: Seconds of the forwards of each rank's layers, by position.
        busy: Seconds per sample of each stage.
        cuts: Cuts of the model.
        n_samples (int): Number of samples in a microbatch.

    Example:
        >>> busy = np.array([0.2, 0.6])
        >>> profile = profile_of([{0: 1.0, 1: 3.0}, {2: 2.0}], busy, [0, 2, 3], 5)
        >>> [round(layer.seconds, 3) for layer in profile.layers]
        [0.25, 0.75, 3.0]
    """
    # A layer without a timed forward, such as an end of a skip, takes no time.
    shares = np.full(cuts[-1], 1e-9)
    for theirs in forwards:
        for position, seconds in theirs.items():
            shares[position] += seconds
    layers = []
    for start, end, seconds in zip(cuts, cuts[1:], busy):
        part = shares[start:end] / shares[start:end].sum() * seconds * n_samples / 3
        layers += [LayerCost(each, each, each) for each in part.tolist()]
    return Profile(layers, n_samples=n_samples, machine="measured in training")
