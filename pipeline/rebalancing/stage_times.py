"""How long the stages of a rank compute, by what the runner writes down anyway."""

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
    """The times of the last minibatches, as one rank saw them.

    Attributes:
        of_stages: Seconds per sample by the stage's number, the oldest first.
        step_seconds: From a step's first action here to its last, with all waits.
        n_samples: That a minibatch usually has here.
    """

    of_stages: dict[int, list[float]]
    step_seconds: float
    n_samples: float

    @property
    def n_minibatches(self) -> int:
        """How many minibatches the times are of."""
        return min(map(len, self.of_stages.values()))


class _Places(NamedTuple):
    """Where the times of a rank's actions are, the same in each minibatch.

    Attributes:
        program: Of the rank.
        stages: The numbers of its stages, in order.
        times: The positions of starts and ends of actions in a record, in turn.
        columns: Of each action the position of its stage in ``stages``.
    """

    program: RankProgram
    stages: list[int]
    times: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, program: RankProgram) -> _Places:
        """Finds them."""
        actions = [
            (i, operation.stage)
            for i, operation in enumerate(program.operations)
            if isinstance(operation, Action)
        ]
        stages = sorted({stage for _, stage in actions})
        times = np.array([2 * i + k for i, _ in actions for k in (0, 1)])
        columns = np.array([stages.index(stage) for _, stage in actions])
        return cls(program, stages, times, columns)

    def busy_seconds(self, record: Record) -> np.ndarray:
        """Returns how long each stage was busy."""
        times = np.array(record.times)[self.times]
        busy = times[1::2] - times[::2]
        return np.bincount(self.columns, busy, len(self.stages))


class StageTimes:
    """The seconds that each of a rank's stages was busy in the last minibatches.

    A stage is busy while it computes; what a rank waits for, and sends, does not count.
    A minibatch costs some microseconds here.

    Args:
        n_kept (int): How many minibatches count.
    """

    def __init__(self, n_kept: int) -> None:
        self._rows: deque[np.ndarray] = deque(maxlen=n_kept)
        # Of whole steps, with all waits; and how many samples they had.
        self._spans: deque[float] = deque(maxlen=n_kept)
        self._sizes: deque[int] = deque(maxlen=n_kept)
        self._places: _Places | None = None

    def __len__(self) -> int:
        """Returns how many minibatches are kept."""
        return len(self._rows)

    def note(self, record: Record, n_samples: int) -> None:
        """Keeps the times of a minibatch.

        Args:
            record (Record): What this rank did, and when.
            n_samples (int): Of the minibatch; one without any says nothing.
        """
        if self._places is None or record.program is not self._places.program:
            self._places = _Places.of(record.program)
            # After a move there are other layers.
            self.clear()
        if n_samples > 0:
            self._rows.append(self._places.busy_seconds(record) / n_samples)
            self._spans.append((record.times[-1] - record.times[0]) / n_samples)
            self._sizes.append(n_samples)

    def clear(self) -> None:
        """Forgets all minibatches."""
        self._rows.clear()
        self._spans.clear()
        self._sizes.clear()

    def keep_last(self, n: int) -> None:
        """Forgets all minibatches but the last ``n``."""
        for each in (self._rows, self._spans, self._sizes):
            while len(each) > n:
                each.popleft()

    def seen(self) -> Seen | None:
        """Returns what is known by now; ``None`` if no minibatch is kept."""
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
    """Returns the seconds of ranks for the samples that their replicas have.

    Args:
        said: By all ranks seconds per sample by stage.
        loads: Of each rank's replica the samples, relative to those of the largest.

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
    """Puts together what ranks say of their stages.

    Args:
        said: By all ranks; of replicas, whose samples are others, the slowest counts,
            for the samples that it has.
        n_stages (int): Of the pipeline.

    Returns:
        Of shape (n_minibatches, n_stages): as many as all have noted.

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
    """Returns for each place in a pipeline the rank that is slowest there.

    Args:
        said: By all ranks, of all replicas: seconds per sample by stage.
        places: Of all ranks in their pipelines.

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
    """Returns the seconds per sample of a rank, with all of its stages, by now."""
    return sum(
        float(np.median(like_the_newest(np.asarray(of_stage))))
        for of_stage in times.values()
    )


def like_the_newest(seconds: np.ndarray) -> np.ndarray:
    """Returns the times that say what a rank does now, without a long exception.

    Example:
        >>> like_the_newest(np.array([1, 1, 1, 1, 2, 2, 9, 2, 2.1])).tolist()
        [2.0, 2.0, 2.0, 2.1]
    """
    counted = seconds[of_now(seconds)]
    # None may be like the median of two kinds.
    return counted if counted.size else seconds[-1:]


def busy_replicas(
    said: Sequence[Mapping[int, Sequence[float]]], replicas: Sequence[int]
) -> list[float]:
    """Returns seconds per sample of each replica's busiest rank.

    Args:
        said: By all ranks: seconds per sample by stage.
        replicas: Of which replica each of them is.

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
    """Returns a profile by what training itself shows.

    The time of a stage is divided among its layers as that of their forwards. A third
    of a layer's is taken for forward and for each part of backward.

    Args:
        forwards: By all ranks, of their layers the seconds of forwards.
        busy: Of each stage, seconds per sample.
        cuts: Where the model is cut.
        n_samples (int): Of a microbatch.

    Example:
        >>> busy = np.array([0.2, 0.6])
        >>> profile = profile_of([{0: 1.0, 1: 3.0}, {2: 2.0}], busy, [0, 2, 3], 5)
        >>> [round(layer.seconds, 3) for layer in profile.layers]
        [0.25, 0.75, 3.0]
    """
    # What has no forward to be timed, such as an end of a skip, takes no time.
    shares = np.full(cuts[-1], 1e-9)
    for theirs in forwards:
        for position, seconds in theirs.items():
            shares[position] += seconds
    layers = []
    for start, end, seconds in zip(cuts, cuts[1:], busy):
        part = shares[start:end] / shares[start:end].sum() * seconds * n_samples / 3
        layers += [LayerCost(each, each, each) for each in part.tolist()]
    return Profile(layers, n_samples=n_samples, machine="measured in training")
