"""The plans that a search tries: replicas, ranks, microbatches, and so on."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from divisible.planning.cut_plan import WAYS, UncutPlan
from divisible.planning.retained_arrays import FULL, HOLD_DTYPES
from divisible.records import shown
from divisible.schedules.catalogue import CATALOGUE, NAMES, ONE_PER_RANK, create

# With more microbatches than enough a pipeline hardly waits less. More are tried only
# if nothing fits, each time by this factor more, up to a number that takes minutes.
_ENOUGH, _MORE, _MOST = 1024, 4, 2**16
# Number of trials up to enough microbatches, if more are possible.
_TRIED = 61


@dataclass(frozen=True)
class SearchSpace:
    """The plans to try, from the arguments of :func:`divisible.best_plan`.

    Attributes:
        ranks: Number of ranks of the machine.
        n_layers: Number of layers of the model.
        batch: Samples of the minibatch.
        microbatches: The numbers of microbatches to try; ``None`` for all sizes of
            them.
        schedules: The names of the schedules to try.
        recompute: The ways to recompute to try.
        pipeline_ranks: The numbers of ranks of a pipeline to try; ``None`` for all.
        replicas: The fewest and the most replicas to try.
        weight_groups: The numbers of microbatches in a group of weight gradients to
            try.
        hold_dtypes: The dtypes to try in which activations wait.

    Raises:
        TypeError: If numbers of something are not integers.
        ValueError: If a number is out of range, or a name is unknown.
    """

    ranks: int
    n_layers: int
    batch: int
    microbatches: Sequence[int] | None
    schedules: Sequence[str]
    recompute: Sequence[str]
    pipeline_ranks: Sequence[int] | None
    replicas: tuple[int, int]
    weight_groups: Sequence[int] = (1,)
    hold_dtypes: Sequence[str] = (FULL,)

    def __post_init__(self) -> None:
        _check_numbers(self.ranks, self.batch, self.replicas)
        for name, known in (
            ("schedules", NAMES),
            ("recompute", WAYS),
            ("hold_dtypes", HOLD_DTYPES),
        ):
            values = tuple(getattr(self, name))
            unknown = [value for value in values if value not in known]
            if unknown or not values:
                raise ValueError(
                    f"{name} must be some of {', '.join(known)}, not {list(values)}"
                )
            object.__setattr__(self, name, values)
        for name in ("microbatches", "pipeline_ranks", "weight_groups"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _integers(name, values))
        if self.microbatches is not None and max(self.microbatches) > _MOST:
            raise ValueError(
                f"microbatches must be {_MOST} at most, not {max(self.microbatches)}"
            )

    def rounds(self) -> Iterator[list[UncutPlan]]:
        """Yields plans to try in rounds; a further round is for when nothing fits."""
        for numbers in self._numbers():
            yield [
                plan
                for plan in self._plans(numbers)
                if self.pipeline_ranks is None or plan.n_ranks in self.pipeline_ranks
            ]

    def __str__(self) -> str:
        return (
            f"{self.ranks} ranks, {self.n_layers} layers, {self.batch} samples,"
            f" microbatches {self.microbatches or 'of any number'}, pipeline_ranks"
            f" {self.pipeline_ranks or 'of any number'} and schedules"
            f" {', '.join(self.schedules)}"
        )

    def _numbers(self) -> Iterator[Callable[[int], Sequence[int]]]:
        """Yields functions from samples to the numbers of microbatches to try."""
        if self.microbatches is not None:
            yield lambda n_samples: [m for m in self.microbatches if m <= n_samples]
            return
        yield _numbers
        few = _ENOUGH
        while few < min(self.batch, _MOST):
            yield functools.partial(_more, few=few)
            few *= _MORE

    def _plans(self, numbers: Callable[[int], Sequence[int]]) -> Iterator[UncutPlan]:
        """Yields plans with numbers of microbatches for the samples of a replica."""
        # On one rank all schedules take the same time.
        serial = min(
            (name for name in ONE_PER_RANK if name in self.schedules),
            key=lambda name: create(name, n_stages=1, n_microbatches=2).validate().held,
            default=None,
        )
        fewest, most = self.replicas
        for replicas in range(fewest, min(most, self.ranks) + 1):
            most_ranks = min(self.ranks // replicas, self.n_layers)
            for n_ranks, m, name, recompute, size, hold in itertools.product(
                range(1, most_ranks + 1),
                numbers(-(-self.batch // replicas)),
                self.schedules,
                self.recompute,
                self.weight_groups,
                self.hold_dtypes,
            ):
                entry = CATALOGUE[name]
                per_rank = entry.stages_per_rank
                if n_ranks == 1 and name != serial:
                    continue
                is_alone = replicas == size == 1 and hold == FULL
                if entry.weight_versions > 1 and not is_alone:
                    continue
                is_another = recompute != "except_last" or m > 1
                is_another &= self._is_another_group(size, m)
                # A single microbatch does not wait.
                is_another &= hold == self.hold_dtypes[0] or m > 1
                if is_another and n_ranks * per_rank <= self.n_layers:
                    yield UncutPlan(
                        replicas,
                        n_ranks,
                        per_rank,
                        name,
                        m,
                        recompute,
                        hold_dtype=hold,
                        weight_groups=min(size, m),
                    )

    def _is_another_group(self, size: int, m: int) -> bool:
        """Returns whether no smaller size makes the same groups of m microbatches."""
        return not any(m <= smaller < size for smaller in self.weight_groups)


def _numbers(n_samples: int) -> Sequence[int]:
    """Returns numbers up to enough microbatches, one for each size of microbatch."""
    tried = range(1, n_samples + 1)
    if n_samples > _ENOUGH:
        tried = np.geomspace(1, _ENOUGH, _TRIED).round().astype(int).tolist()
    return sorted({_least(n_samples, m) for m in tried})


def _more(n_samples: int, few: int) -> Sequence[int]:
    """Returns the next number to try, if ``few`` microbatches were not enough."""
    return [_least(n_samples, min(_MORE * few, n_samples))] * (n_samples > few)


def _least(n_samples: int, n_microbatches: int) -> int:
    """Returns the least number of microbatches that gives the same size."""
    size = -(-n_samples // n_microbatches)
    return -(-n_samples // size)


def _integers(name: str, values: Sequence[int]) -> list[int]:
    """Returns numbers to try as Python's integers."""
    try:
        found = [operator.index(value) for value in values]
    except TypeError:
        raise TypeError(
            f"{name} must be integers to try, such as [1, 2, 4], not {shown(values)}"
        ) from None
    if not found or min(found) < 1:
        raise ValueError(f"{name} must be some positive integers, not {found}")
    return found


def _check_numbers(ranks: int, batch: int, replicas: tuple[int, int]) -> None:
    """Refuses numbers that are not positive, and replicas without ranks."""
    try:
        fewest, most = map(operator.index, replicas)
    except (TypeError, ValueError):
        raise TypeError(
            f"replicas must be the fewest and the most to try, such as (1, 4), not"
            f" {shown(replicas)}"
        ) from None
    for name, number in (
        ("batch", batch),
        ("replicas", fewest),
        ("replicas", most),
    ):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if fewest > min(most, ranks):
        raise ValueError(
            f"replicas are {fewest} at least and {most} at most, but of {ranks} ranks"
            f" there can be {min(most, ranks)} at most"
        )
