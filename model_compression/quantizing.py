"""Steps of quantization, on the layers that a rank has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.optimizer_wrapper import has_skipped
from model_compression.codebooks import Codebooks
from model_compression.extents import Extent
from model_compression.quantized_links import (
    FewBits,
    add_rule,
    begin,
    check_kind,
    has_moving_range,
    move_ranges,
    set_active,
)
from model_compression.rules import ACTIVATIONS, Quantize
from model_compression.selection import Weighted, weights_of
from model_compression.shrinking import Assignment, Left


class Quantizer:
    """The quantization rules of a plan, and their progress.

    Args:
        rules: Rules by their number in the plan.
        optimizers: Optimizers of this rank, set up.
    """

    def __init__(
        self, rules: Mapping[int, Quantize], optimizers: Sequence[Any]
    ) -> None:
        self._rules, self._targets = dict(rules), [each.target for each in optimizers]
        self._optimizers = list(optimizers)
        self._layers: dict[int, list[str]] = {}
        self._weights: dict[int, list[str]] = {}
        self._active: set[int] = set()
        # Whether ranges of activations may follow minibatches. Replicas find out when
        # the last range is frozen. Other ranks may get layers that bring ranges.
        self._may_move = False
        self._books = Codebooks()
        for each in optimizers if self._has_codebooks else []:
            self._books.check_free(each)

    @property
    def _has_codebooks(self) -> bool:
        return any(rule.has_codebook for rule in self._rules.values())

    def add_hooks(self) -> None:
        """Adds the hooks that keep the values of codebooks to the optimizers."""
        for each in self._optimizers if self._has_codebooks else []:
            self._books.add_to(each)

    def check_usable(self) -> None:
        """Refuses optimizers that have lost the hooks.

        Raises:
            RuntimeError: If an optimizer was set up again.
        """
        self._books.check_added()

    def choose(
        self, chosen: Mapping[int, Sequence[str]], layers: Mapping[str, Weighted]
    ) -> None:
        """Records the layers that the rules name, and prepares those of this rank.

        Args:
            chosen: Paths of the layers, by rule.
            layers: All known layers.

        Raises:
            ValueError: If the class of a layer cannot compute with few bits.
        """
        for number, rule in self._rules.items():
            for path in chosen[number]:
                check_kind(path, layers[path].kinds, rule)
        bits = {}
        for number, rule in self._rules.items():
            self._layers[number] = list(chosen[number])
            self._weights[number] = list(weights_of(chosen[number], layers))
            if rule.has_codebook:
                bits.update(dict.fromkeys(self._weights[number], rule.bits))
            else:
                for link in self._links(number):
                    add_rule(link, rule)
        self._books.select(bits)

    def _links(self, number: int) -> Iterator[chainer.Link]:
        """Yields the links of this rank that a rule names."""
        paths = {*self._layers[number]}
        for target in self._targets:
            for path, link in target.namedlinks():
                if path in paths:
                    yield link

    def take(self, numbers: Iterable[int]) -> None:
        """Puts rules in force."""
        for number in numbers:
            rule = self._rules[number]
            self._active.add(number)
            self._may_move |= bool({*rule.targets} & {*ACTIVATIONS})
            if not rule.has_codebook:
                for link in self._links(number):
                    begin(link, rule)
                continue
            params = self._books.params()
            for path in params.keys() & {*self._weights[number]}:
                for param in params[path]:
                    if not param.xp.isfinite(param.array).all():
                        raise ValueError(
                            f"{rule}: {path} has values that are not finite, so no"
                            f" codebook: the training diverged before"
                        )
                    if not param.array.any():
                        raise ValueError(
                            f"{rule}: {path} has only zeros, which would stay zeros:"
                            f" begin when it has learned something"
                        )
                    book = self._books.state_of(path, param)
                    book.begin(param, rule.bits)
                    book.average(param.update_rule, param)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Ends rules; their parameters learn on from their present values."""
        for number in numbers:
            rule = self._rules[number]
            self._active.discard(number)
            if rule.has_codebook:
                params = self._books.params()
                for path in params.keys() & {*self._weights[number]}:
                    self._books.state_of(path, params[path][0]).is_active = 0
            else:
                for link in self._links(number):
                    set_active(link, rule, False)

    def join(self) -> None:
        """Gives elements whose pruning was taken back the nearest of few values."""
        for path, params in self._books.params().items():
            book = self._books.state_of(path, params[0])
            if book.is_active:
                book.join(params[0])
                for param in params:
                    book.average(param.update_rule, param)

    def updated(self, gather: Callable[[Any], list], has_replicas: bool) -> None:
        """Moves the ranges of activations; call it after each update.

        A minibatch that an optimizer has skipped, because gradients were not finite,
        moves no range. Each range counts its own minibatches. Once the last range is
        frozen, replicas exchange nothing any more.

        Args:
            gather: Returns a list of the values that all ranks give.
            has_replicas: Whether other ranks have seen other samples.
        """
        if not self._may_move:
            return
        links, mine = {}, {}
        for optimizer in self._optimizers:
            counts = not has_skipped(optimizer)
            for path, link in optimizer.target.namedlinks():
                if isinstance(link, FewBits):
                    links[path] = link
                    mine[path] = dict(link.ranges.seen) if counts else {}
        said = [mine]
        if has_replicas:
            answers = gather((mine, any(map(has_moving_range, links.values()))))
            said = [theirs for theirs, _ in answers]
            self._may_move = any(is_moving for _, is_moving in answers)
        seen: dict[str, dict[str, Extent]] = {path: {} for path in links}
        for theirs in said:
            for path in theirs.keys() & seen.keys():
                for name, extent in theirs[path].items():
                    known = seen[path].get(name)
                    seen[path][name] = extent if known is None else known.joined(extent)
        for path, link in links.items():
            move_ranges(link, seen[path])

    def taking_away(self, left: Mapping[str, Sequence[Left]]) -> list[Assignment]:
        """Makes the codebooks of remaining weights; see :meth:`.Masks.taking_away`."""
        return self._books.taking_away(left)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns the total bits and the size of this rank's weights, by path."""
        found = {}
        params = {
            path: param
            for target in self._targets
            for path, param in target.namedparams()
        }
        for number, rule in self._rules.items():
            for path in params.keys() & {*self._weights[number]}:
                if "weight" in rule.targets:
                    param = params[path]
                    bits = (
                        rule.bits
                        if number in self._active
                        else 8 * param.dtype.itemsize
                    )
                    found[path] = bits * param.size, param.size
        return found

    def serialize(self, serializer: Any) -> None:
        """Reads or writes which rules are in force; the model has the links' values."""
        active = np.zeros(max(self._rules, default=-1) + 1, np.int32)
        active[[*self._active]] = 1
        active = serializer("active", active)
        self._active = {*np.flatnonzero(active).tolist()}
        if isinstance(serializer, chainer.Deserializer):
            targets = {each for n in self._active for each in self._rules[n].targets}
            self._may_move = bool(targets & {*ACTIVATIONS})

    def serialize_books(self, serializer: Any) -> None:
        """Reads or writes the codebooks of weights."""
        self._books.serialize_states(serializer["codebooks"])
