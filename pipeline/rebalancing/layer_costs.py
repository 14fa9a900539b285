"""The costs of a pipeline's layers, which training shows, and which may change.

A stage that takes longer than the others is on a slow host, or has more work. Which of
both it is the profile tells, as long as it is of the layers that there are. Layers may
become others while they train: channels that are taken away make them smaller. That
shows in the sizes of their parameters, after each minibatch to the rank that has them,
and their costs are measured anew::

    minibatch    20      21 ... 26          27 ... 39      40
    layers       as ever                    have other sizes
    their rank   -       -      sees it     watches them   -
    all ranks    check   -      -           -              check: costs are measured by
                                                           27 to 40; layers may move
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from divisible.layer_pass import LayerSeconds, Signature, timed_layers
from divisible.planning.layer_cost import SECONDS, LayerCost
from divisible.planning.profile import Profile
from divisible.planning.units import count
from pipeline.rebalancing.stage_times import profile_of


class SaidOfLayers(NamedTuple):
    """The facts that a rank tells the others of its layers.

    Attributes:
        forwards: By position the seconds of a forward, if layers are watched.
        changed: The positions of those that have become others since the last check.
        inputs: By position the shapes and dtypes of the inputs of a forward, if layers
            are watched.
    """

    forwards: Mapping[int, float]
    changed: Collection[int]
    inputs: Mapping[int, Signature] = {}


class LayerCosts:
    """The profile of the layers that there are.

    Args:
        profile: The costs of the layers as they are at first; ``None`` if training is
            to show them.

    Attributes:
        profile (Profile): ``None`` until it is measured.
    """

    def __init__(self, profile: Profile | None) -> None:
        self.profile = profile
        self._watching = ExitStack()
        self._forwards = LayerSeconds()
        # Of this rank's layers, and which have become others since the last check.
        self._sizes: dict[int, int] = {}
        self._changed: set[int] = set()
        # Those of all ranks that are not measured yet, and how fast the ranks were.
        self._others: set[int] = set()
        self._speeds: Sequence[float] = ()

    def watch(self) -> None:
        """Begins to look how long the forwards of this rank's layers take."""
        self.close()
        self._forwards = self._watching.enter_context(timed_layers())

    def close(self) -> None:
        """Stops to look."""
        self._watching.close()

    @property
    def are_open(self) -> bool:
        """Whether this rank's layers are to be watched."""
        return self.profile is None or bool(self._changed)

    def look(self, stages: Iterable[Divisible]) -> bool:
        """Looks whether layers of this rank have become others, and then watches them.

        To be called after each minibatch, and after moves. It costs some microseconds
        for each layer.

        Args:
            stages: Of this rank.

        Returns:
            bool: Whether parameters have other sizes than at the last look.
        """
        sizes = sizes_of(stages)
        before, self._sizes = self._sizes, sizes
        changed = {i for i in sizes if sizes[i] != before.get(i, sizes[i])}
        self._changed |= changed
        if changed:
            self.watch()
        return bool(changed)

    def said(self) -> SaidOfLayers:
        """Returns what this rank says of its layers at a check."""
        # The first forward of a layer may compile something, or choose a kernel.
        forwards = {i: float(np.median(each)) for i, each in self._forwards.items()}
        inputs = dict(self._forwards.inputs)
        return SaidOfLayers(forwards, sorted(self._changed), inputs)

    def measure_anew(
        self, said: Sequence[SaidOfLayers], speeds: Sequence[float]
    ) -> list[int]:
        """Takes note of layers that have become others since the last check.

        Args:
            said: By all ranks.
            speeds: Of the ranks, relative to the profile, as they were before; empty if
                they are not known. A host does not become another with its layers.

        Returns:
            list: Their positions.
        """
        self._changed = set()
        changed = set().union(*(theirs.changed for theirs in said))
        if changed:
            self._others |= changed
            self._speeds = speeds
        return sorted(changed)

    def compare(self, speeds: Sequence[float]) -> None:
        """Records how fast ranks are, before their layers are measured.

        Args:
            speeds: Speeds of the ranks of a pipeline, relative to each other; empty if
                they are not known.
        """
        self._speeds = speeds

    def measured(
        self,
        said: Sequence[SaidOfLayers],
        busy: np.ndarray,
        cuts: Sequence[int],
        stage_ranks: Sequence[int],
        n_samples: int,
    ) -> None:
        """Takes what was measured for the profile, if layers were watched.

        The profile that there was stays as it is for stages none of whose layers has
        become another, and for what layers hold.

        Args:
            said: By all ranks.
            busy: Of each stage, seconds per sample.
            cuts: Where the model is cut.
            stage_ranks: For each stage its rank.
            n_samples (int): Of a microbatch.
        """
        self.close()
        forwards = [theirs.forwards for theirs in said]
        others, self._others = self._others, set()
        self._forwards = LayerSeconds()
        if not any(forwards):
            return
        if len(self._speeds):
            busy = busy * np.asarray(self._speeds)[list(stage_ranks)]
        before, busy = self.profile, np.array(busy)
        if before is not None and before.loss is not None:
            # It computes there, too, but is no layer.
            loss = before.loss.seconds / before.n_samples
            busy[-1] = max(busy[-1] - loss, busy[-1] / 2)
        size = n_samples if before is None else before.n_samples
        found = profile_of(forwards, busy, cuts, size)
        if before is None:
            self.profile = found
            return
        layers = list(before.layers)
        for start, end in zip(cuts, cuts[1:]):
            for i in range(start, end) if others & set(range(start, end)) else ():
                layers[i] = _as_long_as(found.layers[i], layers[i])
        self.profile = dataclasses.replace(before, layers=layers)


def sizes_of(stages: Iterable[Divisible]) -> dict[int, int]:
    """Returns by position the bytes of the parameters of layers.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> sizes_of([Divisible(L.Linear(3, 2), F.relu)])
        {0: 32, 1: 0}
    """
    return {
        position: _n_bytes(layer)
        for stage in stages
        for position, layer in enumerate(stage, stage.layer_range[0])
    }


def change_in_words(changed: Sequence[int]) -> str:
    """Returns which layers have become others."""
    return (
        f"the parameters of {count(len(changed), 'layer')} have other sizes than"
        f" before, from layer {changed[0]} to layer {changed[-1]}: what layers cost is"
        f" measured anew"
    )


def _n_bytes(layer: Any) -> int:
    params = layer.params() if isinstance(layer, chainer.Link) else ()
    return sum(param.array.nbytes for param in params if param.is_initialized)


def _as_long_as(found: LayerCost, before: LayerCost) -> LayerCost:
    """Returns a layer's cost, with other seconds for forward and backward together."""
    times = found.seconds / before.seconds
    seconds = {name: getattr(before, name) * times for name in SECONDS}
    return dataclasses.replace(before, **seconds)
