"""The costs of a pipeline's layers, measured in training, which may change.

A stage that takes longer than the others is on a slow host, or has more work. The
profile tells which, as long as it is a profile of the present layers. Layers may change
while they train: without some of their channels they are smaller. After each minibatch,
the rank of a layer compares the sizes of its parameters. If they have changed, the
costs are measured again::

    minibatch    20      21 ... 26          27 ... 39      40
    layers       as before                  have other sizes
    their rank   -       -      sees it     times them     -
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
    """A rank's measurements of its layers, for the other ranks.

    Attributes:
        forwards: Seconds of a forward of each layer, by position, if layers are timed.
        changed: Positions of the layers whose sizes have changed since the last check.
        inputs: Shapes and dtypes of a forward's inputs, by position, if layers are
            timed.
    """

    forwards: Mapping[int, float]
    changed: Collection[int]
    inputs: Mapping[int, Signature] = {}


class LayerCosts:
    """The profile of the present layers.

    Args:
        profile: Costs of the layers at the beginning; ``None`` to measure them in
            training.

    Attributes:
        profile (Profile): The present profile; ``None`` until it is measured.
    """

    def __init__(self, profile: Profile | None) -> None:
        self.profile = profile
        self._watching = ExitStack()
        self._forwards = LayerSeconds()
        # Sizes of this rank's layers, and the layers whose sizes changed since the last
        # check.
        self._sizes: dict[int, int] = {}
        self._changed: set[int] = set()
        # Changed layers of all ranks that are not measured yet, and the ranks' speeds
        # before.
        self._others: set[int] = set()
        self._speeds: Sequence[float] = ()

    def watch(self) -> None:
        """Begins to time the forwards of this rank's layers."""
        self.close()
        self._forwards = self._watching.enter_context(timed_layers())

    def close(self) -> None:
        """Stops timing forwards."""
        self._watching.close()

    @property
    def are_open(self) -> bool:
        """Whether to time the forwards of this rank's layers."""
        return self.profile is None or bool(self._changed)

    def look(self, stages: Iterable[Divisible]) -> bool:
        """Checks whether this rank's layers have new sizes; if so, times them.

        To be called after each minibatch, and after moves. A check takes some
        microseconds per layer.

        Args:
            stages: Stages of this rank.

        Returns:
            bool: Whether parameters have other sizes than at the last call.
        """
        sizes = sizes_of(stages)
        before, self._sizes = self._sizes, sizes
        changed = {i for i in sizes if sizes[i] != before.get(i, sizes[i])}
        self._changed |= changed
        if changed:
            self.watch()
        return bool(changed)

    def said(self) -> SaidOfLayers:
        """Returns this rank's measurements of its layers, for a check."""
        # A median, because the first forward may compile something, or choose a kernel.
        forwards = {i: float(np.median(each)) for i, each in self._forwards.items()}
        inputs = dict(self._forwards.inputs)
        return SaidOfLayers(forwards, sorted(self._changed), inputs)

    def measure_anew(
        self, said: Sequence[SaidOfLayers], speeds: Sequence[float]
    ) -> list[int]:
        """Records the layers whose sizes have changed since the last check.

        Args:
            said: Measurements of all ranks.
            speeds: Former speeds of the ranks, relative to the profile; empty if not
                known. A host keeps its speed when its layers change.

        Returns:
            list: Positions of the changed layers.
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
        """Updates the profile by measured times, if layers were timed.

        Costs stay as they are for stages without a changed layer. The bytes of a
        profile stay as they are for all layers.

        Args:
            said: Measurements of all ranks.
            busy: Seconds per sample of each stage.
            cuts: Cuts of the model.
            stage_ranks: Rank of each stage.
            n_samples (int): Number of samples in a microbatch.
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
            # The loss takes part of the last stage's time, but is not a layer.
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
    """Returns the bytes of the layers' parameters, by position.

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
    """Returns a text about layers whose sizes have changed."""
    return (
        f"the parameters of {count(len(changed), 'layer')} have other sizes than"
        f" before, from layer {changed[0]} to layer {changed[-1]}: the costs of layers"
        f" are measured again"
    )


def _n_bytes(layer: Any) -> int:
    params = layer.params() if isinstance(layer, chainer.Link) else ()
    return sum(param.array.nbytes for param in params if param.is_initialized)


def _as_long_as(found: LayerCost, before: LayerCost) -> LayerCost:
    """Returns a layer's former cost, scaled to the seconds that were found."""
    times = found.seconds / before.seconds
    seconds = {name: getattr(before, name) * times for name in SECONDS}
    return dataclasses.replace(before, **seconds)
