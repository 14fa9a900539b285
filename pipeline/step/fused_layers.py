"""Chains of layers that run as one function, chosen by the first minibatch.

::

    minibatch 1    each rank runs its layers one by one, and measures the chains in them
       after it    one replica's choices are sent to all ranks; after the next minibatch
                   if layers had no size yet
    from then on   chains that are faster fused run as one function, on every replica
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np

from divisible import Divisible
from pipeline.calls.ranks import Ranks
from pipeline.start.arguments import AUTO, NONE, Span

if TYPE_CHECKING:
    from chainer_kernels.fusion.measuring import FusionChoice


def _is_within(span: Span, other: Span) -> bool:
    """Returns whether a chain is a part of another one."""
    return span != other and other[0] <= span[0] and span[1] <= other[1]


class FusedLayers:
    """The chains of a pipeline's layers, and which of them run as one function.

    ``str()`` returns a table of the chains: their layers, the milliseconds of a
    microbatch's forward and backward before and after fusion, the bytes read and
    written, and the largest difference.

    Args:
        stages: Stages of this rank.
        fuse: ``'auto'``, ``'none'``, or the chains to fuse.

    Attributes:
        chains (tuple of pairs): Fused chains of all ranks, for ``Pipeline(fuse=)`` and
            ``Plan(fusion=)``.
        choices (tuple of FusionChoice): Measurements of all ranks.
        is_open (bool): Whether later minibatches decide which chains to fuse.
    """

    def __init__(self, stages: Sequence[Divisible], fuse: Any) -> None:
        self._stages, self.is_open = list(stages), fuse == AUTO
        self._has_waited = False
        self.chains: tuple[Span, ...] = ()
        self.choices: tuple[FusionChoice, ...] = ()
        if fuse == AUTO:
            for stage in stages:
                stage.measure_fusion()
        elif fuse != NONE:
            self._fuse(fuse)

    def _fuse(self, chains: Iterable[Span]) -> None:
        self.chains, self.is_open = tuple(sorted(chains)), False
        for stage in self._stages:
            stage.fuse(self.chains)

    def choose(self, ranks: Ranks) -> None:
        """Chooses chains by the times of a minibatch, while the choice is open.

        All ranks must call it.

        Args:
            ranks: All ranks of the pipeline.
        """
        mine = {
            (choice.start, choice.end): choice
            for stage in self._stages
            for choice in stage.fusion_choices
        }
        is_early = any([stage.fuses_later() for stage in self._stages])
        is_early = is_early and not self._has_waited
        said = ranks.all_gather((mine, is_early), "to choose what is fused")
        self._has_waited = True
        if any(early for _, early in said):
            return
        found: dict[Span, FusionChoice] = {}
        for theirs, _ in said:
            for span, choice in theirs.items():
                # The choice of the first replica that has run the chain.
                found.setdefault(span, choice)
        self.choices = tuple(found[span] for span in sorted(found))
        fused = [span for span, choice in found.items() if choice.is_fused]
        # A longer chain may have been found later, when a layer had its size.
        self._fuse(
            span for span in fused if not any(_is_within(span, s) for s in fused)
        )

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the choice, so that a resumed run fuses the same chains."""
        if not isinstance(serializer, chainer.Deserializer):
            serializer("fused_layers", np.array(self.chains, np.int64))
            return
        try:
            chains = serializer("fused_layers", None)
        except KeyError:
            return
        if chains is not None and self.is_open:
            self._fuse((int(start), int(end)) for start, end in chains)

    def __str__(self) -> str:
        """Returns the chains as a table."""
        from chainer_kernels.fusion.report import table

        if self.is_open:
            return "the first minibatches choose what is fused"
        if not self.choices:
            words = ", ".join(f"{start}-{end - 1}" for start, end in self.chains)
            return f"fused layers: {words or 'none'}"
        return table(self.choices)
