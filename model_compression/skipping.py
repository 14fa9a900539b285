"""Layers that skip pruned blocks, once no rule prunes any more of them.

::

    minibatch k      a rule takes its last step: zeros are fixed, and recorded in links
              k + 1  each rank measures its layers, with the inputs of this minibatch;
                     the choice of the first rank that has a layer counts on all
              k + 2  layers that are faster so skip blocks, on all replicas
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np

from model_compression import block_links
from model_compression.channels import Channels
from model_compression.masks import Masks
from model_compression.rules import Prune
from model_compression.selection import Weighted

#: States of a rule: its zeros may change, are recorded, and its layers are chosen.
_PRUNES, _IS_FIXED, _IS_CHOSEN = range(3)


class Skipper:
    """The layers that may skip blocks, and how far each rule is with them.

    Args:
        rules: Rules with ``skip_blocks`` by their number in the plan.
        optimizers: Optimizers of this rank, set up.
        masks: The pruned elements.

    Attributes:
        rules: The rules.
    """

    def __init__(
        self, rules: Mapping[int, Prune], optimizers: Sequence[Any], masks: Masks
    ) -> None:
        self.rules, self._masks = dict(rules), masks
        self._targets = [each.target for each in optimizers]
        self._layers: dict[int, dict[str, str]] = {}
        self._states = dict.fromkeys(self.rules, _PRUNES)

    def choose(
        self, chosen: Mapping[int, Sequence[str]], layers: Mapping[str, Weighted]
    ) -> None:
        """Records the layers that the rules name, and prepares those of this rank.

        Args:
            chosen: Paths of the layers, by rule.
            layers: All known layers.
        """
        for number in self.rules:
            self._layers[number] = {}
            for path in chosen[number]:
                weights = [*layers[path].weights]
                if len(weights) == 1:
                    self._layers[number][path] = weights[0]
            for _, link in self._links(number):
                block_links.prepare(link)

    def _links(self, number: int) -> Iterator[tuple[str, chainer.Link]]:
        """Yields the links of this rank that a rule names, with their paths."""
        for target in self._targets:
            for path, link in target.namedlinks():
                if path in self._layers[number]:
                    yield path, link

    def pending(self, numbers: Iterable[int]) -> list[int]:
        """Returns the rules among some whose layers are not chosen yet."""
        return [n for n in numbers if self._states.get(n, _IS_CHOSEN) != _IS_CHOSEN]

    def advance(self, numbers: Iterable[int], gather: Callable[[Any], list]) -> None:
        """Records zeros, or chooses layers; a call of all ranks.

        Args:
            numbers: Rules that have taken their last step.
            gather: Returns a list of the values that all ranks give.
        """
        for number in self.pending(numbers):
            if self._states[number] == _PRUNES:
                self._record_zeros(number)
            else:
                self._measure(number, gather)
            self._states[number] += 1

    def _record_zeros(self, number: int) -> None:
        params = self._masks.params()
        for path, link in self._links(number):
            if isinstance(link, block_links.SkipsBlocks):
                weight = self._layers[number][path]
                mask = self._masks.state_of(weight, params[weight][0])
                block_links.set_live(link, mask.pruned)

    def _measure(self, number: int, gather: Callable[[Any], list]) -> None:
        mine: dict[str, bool] = {}
        for path, link in self._links(number):
            if path not in mine and isinstance(link, block_links.SkipsBlocks):
                choice = block_links.choose(link)
                if choice is not None:
                    mine[path] = choice
        found: dict[str, bool] = {}
        for theirs in gather(mine):
            for path, choice in theirs.items():
                # Replicas and tied layers compute alike.
                found.setdefault(path, choice)
        for path, link in self._links(number):
            if isinstance(link, block_links.SkipsBlocks):
                block_links.set_choice(link, found.get(path, False))

    def serialize(self, serializer: Any) -> None:
        """Reads or writes how far rules are; the links have the zeros and choices."""
        numbers = sorted(self.rules)
        states = np.array([self._states[number] for number in numbers], np.int32)
        states = serializer("skipping", states)
        self._states = dict(zip(numbers, states.tolist()))


def check_sizes(
    rules: Sequence[Any],
    chosen: Sequence[Sequence[str]],
    channels: Iterable[Channels],
    layers: Mapping[str, Weighted],
) -> None:
    """Refuses to skip blocks of a layer that loses inputs, and with them its blocks.

    Args:
        rules: Rules of a plan.
        chosen: Paths of the layers, by rule.
        channels: The channels that rules remove.
        layers: All known layers.

    Raises:
        ValueError: If a layer that may skip blocks reads such channels.
    """
    layer_of = {each.reading: each.layer for each in channels}
    for rule, paths in zip(rules, chosen):
        for path in paths if getattr(rule, "skip_blocks", False) else ():
            shapes = layers[path].weights.values()
            if path in layer_of and all(map(block_links.are_whole_tiles, shapes)):
                raise ValueError(
                    f"{rule}: {path} reads channels of {layer_of[path]}, which"
                    f" granularity='channel' removes, and has other blocks then: leave"
                    f" out skip_blocks for {path}, or prune rows of {layer_of[path]}"
                )
