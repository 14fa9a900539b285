"""Schedules by name: one entry has everything that is known of a schedule.

The names, choices on the command line, default candidates of `divisible.best_plan`,
tables of the documentation and matrices of the tests follow from `CATALOGUE`. A new
schedule is one function, one `Entry` here and one paragraph in
``docs/explanation/schedules.rst``.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple

from divisible.schedules.actions import ScheduleError
from divisible.schedules.building_blocks import v_half, v_min
from divisible.schedules.dual_pipe import dualpipe_v
from divisible.schedules.generators import (
    check_positive,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
)
from divisible.schedules.pipedream import pipedream_2bw
from divisible.schedules.schedule import Schedule
from divisible.schedules.zero_bubble import (
    interleaved_zb,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)


class Placement(enum.Enum):
    """How stages lie on ranks; the value has the number of stages on each, in words."""

    LINE = "one"
    LOOP = "several, in turn"
    V = "two, in the shape of a V"

    def ranks(self, n_ranks: int, n_stages: int) -> tuple[int, ...]:
        """Returns the rank of each stage.

        Args:
            n_ranks: Number of ranks.
            n_stages: Number of stages on all ranks together.

        Returns:
            For each stage its rank.

        Example:
            >>> Placement.LOOP.ranks(2, 4), Placement.V.ranks(2, 4)
            ((0, 1, 0, 1), (0, 1, 1, 0))
        """
        if self is Placement.V:
            return tuple(min(s, n_stages - 1 - s) for s in range(n_stages))
        return tuple(s % n_ranks for s in range(n_stages))


class Entry(NamedTuple):
    """One schedule.

    Attributes:
        name: The name that users give.
        make: Function that makes the schedule. Its arguments are the number of ranks,
            with `Placement.LOOP` the number of stages on each rank, and the number of
            microbatches.
        summary: When to use the schedule, in reStructuredText.
        stages_per_rank: Number of stages on a rank; with `Placement.LOOP` the usual
            one.
        placement: How stages lie on ranks.
        tried_by_default: Whether `divisible.best_plan` tries the schedule by default.
        weight_versions: Number of versions of the weights; with 2, gradients come one
            step late (`divisible.schedules.weight_versions`).
    """

    name: str
    make: Callable[..., Schedule]
    summary: str
    stages_per_rank: int = 1
    placement: Placement = Placement.LINE
    tried_by_default: bool = True
    weight_versions: int = 1


_ENTRIES = (
    Entry(
        "1f1b",
        one_f_one_b,
        "The first choice. Memory does not grow with the number of microbatches.",
    ),
    Entry(
        "zb_h1",
        zero_bubble_h1,
        "To wait less, if the model consists of layers whose backward can be split. "
        "Every rank holds as many microbatches as the first one does in 1F1B, and "
        "output gradients for W.",
    ),
    Entry(
        "zb_h2",
        zero_bubble_h2,
        "Instead of ``'zb_h1'``, if messages take long, there are twice as many "
        "microbatches as stages, and memory has room for nearly twice as many.",
    ),
    Entry(
        "zb_v",
        zero_bubble_v,
        "To wait least, if the model has enough layers for two stages on each rank.",
        2,
        Placement.V,
    ),
    Entry(
        "v_half",
        v_half,
        "To hold half as much as ``'1f1b'`` and wait less, if the model has enough "
        "layers for two stages on each rank.",
        2,
        Placement.V,
    ),
    Entry(
        "v_min",
        v_min,
        "To hold a third as much as ``'1f1b'``. It is about as fast only if F, I and W "
        "take about equally long.",
        2,
        Placement.V,
    ),
    Entry(
        "interleaved",
        interleaved,
        "To wait less without splitting the backward. Sends more messages.",
        2,
        Placement.LOOP,
    ),
    Entry(
        "interleaved_zb",
        interleaved_zb,
        "Instead of ``'interleaved'``, if the backward of the layers can be split. "
        "Waits a third as long, and holds less.",
        2,
        Placement.LOOP,
    ),
    Entry(
        "looped_bfs",
        looped_bfs,
        "For work that each stage does once in a minibatch. Holds as much as GPipe.",
        2,
        Placement.LOOP,
        tried_by_default=False,
    ),
    Entry(
        "dualpipe_v",
        dualpipe_v,
        "For comparison with ``'zb_v'``.",
        2,
        Placement.V,
        tried_by_default=False,
    ),
    Entry(
        "pipedream_2bw",
        pipedream_2bw,
        "To wait only once in a whole run, if gradients may be one step late. The "
        "training then differs from that of the undivided model. Holds weights twice.",
        tried_by_default=False,
        weight_versions=2,
    ),
    Entry("gpipe", gpipe, "For comparison."),
)
# Limit of the forwards of a schedule, which takes a gigabyte and seconds to make.
_MOST = 2**22
#: All entries by name.
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
#: The names that `create` knows.
NAMES = tuple(CATALOGUE)
#: Names of the schedules with one stage on each rank.
ONE_PER_RANK = tuple(n for n, e in CATALOGUE.items() if e.placement is Placement.LINE)
#: Names of the schedules that `divisible.best_plan` tries by default.
TRIED_BY_DEFAULT = tuple(n for n, e in CATALOGUE.items() if e.tried_by_default)


def create(
    name: str, n_stages: int, n_microbatches: int, n_ranks: int | None = None
) -> Schedule:
    """Makes a schedule by its name.

    Args:
        name: One of `NAMES`.
        n_stages: Number of stages on all ranks together.
        n_microbatches: Number of microbatches.
        n_ranks: Number of ranks. By default each has the schedule's usual number of
            stages.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If the name is unknown, the stages cannot be spread over the
            ranks in the way that the schedule needs, or there are too many
            microbatches.

    Example:
        >>> create("zb_v", n_stages=4, n_microbatches=2).stage_ranks
        (0, 1, 1, 0)
    """
    if name not in CATALOGUE:
        raise ScheduleError(
            f"there is no schedule {name!r}; choose one of {', '.join(NAMES)}"
        )
    entry = CATALOGUE[name]
    make, per_rank, placement = entry.make, entry.stages_per_rank, entry.placement
    check_positive(n_stages=n_stages, n_microbatches=n_microbatches)
    if n_stages * n_microbatches > _MOST:
        raise ScheduleError(
            f"a schedule lists every action: {n_stages} stages and {n_microbatches} "
            f"microbatches have more than the {_MOST} forwards that fit into memory"
        )
    if n_ranks is None:
        n_ranks = max(1, n_stages // per_rank)
    check_positive(n_ranks=n_ranks)
    if placement is Placement.LOOP:
        if n_stages % n_ranks:
            raise ScheduleError(
                f"{name} needs the same number of stages on each rank, but {n_stages} "
                f"stages do not divide among {n_ranks} ranks; cut the model into a "
                f"multiple of {n_ranks} stages"
            )
        return make(n_ranks, n_stages // n_ranks, n_microbatches)
    if n_stages != per_rank * n_ranks:
        raise ScheduleError(
            f"{name} needs {per_rank} stage{'s' * (per_rank > 1)} on each rank, that "
            f"is {per_rank * n_ranks} on {n_ranks} ranks, not {n_stages}"
        )
    return make(n_ranks, n_microbatches)


def placed(stage_ranks: Sequence[int], n_microbatches: int) -> Iterator[Schedule]:
    """Yields the schedules of the catalogue whose stages lie on given ranks.

    Schedules with two weight versions are left out, because they change the training.

    Args:
        stage_ranks: For each stage its rank.
        n_microbatches: Number of microbatches.

    Example:
        >>> [schedule.name for schedule in placed([0, 1, 1, 0], n_microbatches=2)]
        ['zb_v', 'v_half', 'v_min', 'dualpipe_v']
    """
    n_stages, n_ranks = len(stage_ranks), len(set(stage_ranks))
    for name, entry in CATALOGUE.items():
        if entry.weight_versions > 1:
            continue
        # A name that needs another number of stages on each rank does not fit.
        with contextlib.suppress(ScheduleError):
            schedule = create(name, n_stages, n_microbatches, n_ranks)
            if schedule.stage_ranks == tuple(stage_ranks):
                yield schedule
