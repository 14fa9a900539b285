"""Layers of a list that run as one function where that is faster.

::

    layers              Linear   relu   dropout   Linear   tanh   lambda
    chains found                 '----2----'               '-1-'  not marked
    run                 Linear   one function     Linear   tanh   lambda

A chain is found when its first layer is reached: it is traced on the inputs that are
there, for each shape of them anew, and measured once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.functions.dropout import drawn_mask
from chainer_kernels.fusion import products
from chainer_kernels.fusion.asides import Surroundings
from chainer_kernels.fusion.chains import TAKES_ANOTHER_SHAPE, Chain, traced
from chainer_kernels.fusion.heads import heads_of, nobody_looks
from chainer_kernels.fusion.hooks import has_hooks, is_quiet
from chainer_kernels.fusion.measuring import Choice, measured
from chainer_kernels.fusion.tracing import NotPointwise
from chainer_kernels.fusion.trust import why_not
from chainer_kernels.layouts import are_alike

#: A chain whose inputs have more shapes than this runs unfused in further ones.
_MOST_SHAPES = 64

Layer = Callable[..., Any]
Span = tuple[int, int]


class _Found(NamedTuple):
    """The result of looking for a chain at a layer.

    Attributes:
        layers: Those that were looked at; the last one ends the search, or is ``None``
            where none followed.
        n_layers: How many of them are one function; 0 for none.
        chain: These.
        takers: The places among them of those that take something from aside.
    """

    layers: tuple[Layer | None, ...]
    n_layers: int = 0
    chain: Chain | None = None
    takers: tuple[int, ...] = ()

    def is_of(self, layers: Sequence[Layer], index: int) -> bool:
        """Returns whether the same layers stand there still."""
        n = len(self.layers)
        found = (*layers[index : index + n], None)[:n]
        return len(found) == n and all(a is b for a, b in zip(self.layers, found))


class Fusion:
    """The chains in a list of layers, and whether each is fused.

    Args:
        decisions: For chains, by their first position and the one after their last,
            whether to fuse them. ``None`` lets measurements decide, here and at once.
        only_exact: Whether to fuse only what has the bits of the functions one by one,
            so that no decision changes a result.

    Attributes:
        decisions: As given, or as measured.
        choices: What was measured, by the same positions.
        reasons: By position why a layer is in no chain.
        waits: Whether chains are measured, and run unfused until somebody decides.
        is_early: Whether a layer had no size yet where a chain might begin, so that
            there will be more to measure.
    """

    def __init__(
        self,
        decisions: dict[Span, bool] | None = None,
        waits: bool = False,
        only_exact: bool = False,
    ) -> None:
        self._set(decisions or {})
        self._is_decided = decisions is not None
        self.choices: dict[Span, Choice] = {}
        self.reasons: dict[int, str] = {}
        self.waits, self.is_early = waits, False
        self._only_exact = only_exact
        self._chains: dict[tuple, _Found] = {}
        # Positions within chains that will run as one, in which no other one begins.
        self._within: set[int] = set()

    def __deepcopy__(self, memo: dict) -> Fusion:
        """Returns one for a copy of the layers, with the same decisions."""
        copied = Fusion(self.decisions, self.waits, self._only_exact)
        copied._is_decided = self._is_decided
        return copied

    def __reduce__(self) -> tuple:
        """Leaves what is compiled to the process that it was compiled in."""
        decisions = self.decisions if self._is_decided else None
        return Fusion, (decisions, self.waits, self._only_exact)

    def decide(self, decisions: dict[Span, bool]) -> None:
        """Fuses the chains that are chosen from now on, and no others."""
        self._set(decisions)
        self._is_decided, self.waits = True, False

    def _set(self, decisions: Mapping[Span, bool]) -> None:
        self.decisions: dict[Span, bool] = dict(decisions)
        self._starts = {start for (start, _), fused in decisions.items() if fused}

    def run(
        self,
        layers: Sequence[Layer],
        index: int,
        position: int,
        value: Any,
        around: Surroundings,
    ) -> tuple[int, Any] | None:
        """Runs the chain that begins at a layer, if there is one and it is fused.

        Args:
            layers: The layers, between any of which nothing else happens.
            index: Which of them is next.
            position: What its position is called.
            value: Its input, or a tuple of them.
            around: What else is to be known.

        Returns:
            How many layers have run, and what the last one returned; or ``None``.
        """
        if self._is_decided and position not in self._starts:
            return None
        if self.waits and position in self._within:
            return None
        inputs = value if isinstance(value, tuple) else (value,)
        if not inputs or not is_quiet() or not are_alike(*_arrays(inputs)):
            return None
        found = self._found(layers, index, position, inputs, around)
        chain, run = found.chain, found.layers[: found.n_layers]
        if chain is None or any(has_hooks(layer) for layer in run):
            return None
        taken = [around.aside(run[place]) for place in found.takers]
        if any(each is None for each in taken):
            return None
        inputs = *inputs, *(x for each in taken for x in each)
        arrays = _arrays(inputs)
        if not chain.is_ready(arrays):
            return None
        is_shared = around.is_shared or bool(taken)
        if self._only_exact and is_shared and _adds_up(chain, inputs):
            return None
        span = position, position + found.n_layers
        if span not in self.decisions and not self._is_decided:
            with nobody_looks(run):
                trial = chain.trial(arrays, functools.partial(_masks, chain))
                choice = measured(span, chain, trial)
            self.choices[span] = choice
            self.decisions[span] = choice.is_fused
            if choice.is_fused:
                self._within.update(range(position + 1, span[1]))
        if self.waits or not self.decisions.get(span, False):
            return None
        draw = functools.partial(_masks, chain, position=position, enter=around.enter)
        return found.n_layers, chain.apply(inputs, draw)

    def _found(
        self,
        layers: Sequence[Layer],
        index: int,
        position: int,
        inputs: tuple,
        around: Surroundings,
    ) -> _Found:
        first = layers[index]
        has_product = (
            len(inputs) == 1
            and products.is_product(first)
            and around.is_plain(position)
        )
        # Copies of a model may take turns, and outputs become fewer.
        place = id(layers), index, position
        n_outputs = products.n_outputs(first) if has_product else 0
        like = len(inputs), inputs[0].shape, bool(chainer.config.train), n_outputs
        found = self._chains.get((*place, *like))
        if found is not None and found.is_of(layers, index):
            return found
        trusted, takers = self._trusted(
            layers[index:], position, inputs, around, has_product
        )
        end = index + len(trusted)
        found = _Found((*trusted, layers[end] if end < len(layers) else None))
        # What has no size yet gets it in a call that counts.
        is_sized = n_outputs is not None
        if not is_sized or any(head.avg_mean is None for head in heads_of(trusted)):
            self.is_early = True
            return found
        if sum(known[:3] == place for known in self._chains) >= _MOST_SHAPES:
            return found
        if trusted:
            found = self._traced(found, trusted, position, inputs, takers)
        self._chains[(*place, *like)] = found
        return found

    def _trusted(
        self,
        layers: Sequence[Layer],
        position: int,
        inputs: tuple,
        around: Surroundings,
        has_product: bool,
    ) -> tuple[list[Layer], dict[int, tuple]]:
        """Returns the layers that may be traced, and what some take from aside."""
        trusted, takers = [], {}
        for place, layer in enumerate(layers):
            taken = around.aside(layer)
            if has_product and place == 0:
                reason = None
            elif taken is None:
                reason = why_not(layer)
            # What follows a product has its shape, which is not known yet.
            elif has_product or are_alike(*_arrays((inputs[0], *taken))):
                reason = layer.joined_by and why_not(layer.joined_by)
            else:
                reason = TAKES_ANOTHER_SHAPE
            if reason is not None:
                self.reasons.setdefault(position + place, reason)
                break
            if taken is not None:
                takers[place] = taken
            trusted.append(layer)
        return trusted, takers

    def _traced(
        self,
        found: _Found,
        layers: Sequence[Layer],
        position: int,
        inputs: tuple,
        takers: Mapping[int, tuple],
    ) -> _Found:
        """Returns the longest chain that begins with these layers."""
        while layers:
            arrays, asides = _arrays(inputs), {}
            for place, taken in takers.items():
                if place < len(layers):
                    asides[place] = range(len(arrays), len(arrays) + len(taken))
                    arrays += _arrays(taken)
            try:
                with nobody_looks(layers):
                    chain = traced(layers, arrays, asides)
            except NotPointwise as error:
                self.reasons[position + error.layer] = error.reason
                layers = layers[: error.layer]
                continue
            except Exception:
                # Whoever calls the layer gets to see it, with its position.
                break
            program = chain.program
            if len(program.labels) < 2:
                break
            if self._only_exact and not program.is_exact:
                self.reasons[position] = f"{program.labels[0]} begins what is not exact"
                break
            return _Found(found.layers, len(layers), chain, tuple(asides))
        return found


def _adds_up(chain: Chain, inputs: Sequence[Any]) -> bool:
    """Returns whether a chain adds up gradients of an input.

    If others add to them as well, it does so in another order.
    """
    return chain.program.adds_up_inputs or len({*map(id, inputs)}) < len(inputs)


def _masks(
    chain: Chain,
    like: np.ndarray,
    position: int = 0,
    enter: Callable[[int], None] = lambda position: None,
) -> list[np.ndarray]:
    """Draws the masks of a chain.

    Args:
        chain: The chain.
        like: What they are for.
        position: Of its first layer.
        enter: Called with the position of a layer before it draws.
    """
    masks, drawn = [], None
    for mask in chain.program.masks:
        if mask.layer != drawn:
            enter(position + mask.layer)
            drawn = mask.layer
        masks.append(drawn_mask(like, mask.ratio))
    return masks


def _arrays(inputs: Sequence[Any]) -> list[np.ndarray]:
    return [v.array if isinstance(v, chainer.Variable) else v for v in inputs]
