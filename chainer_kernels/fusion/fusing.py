"""Chains of layers in a list that run as one function where that is faster.

::

    layers              Linear   relu   dropout   Linear   tanh   lambda
    chains found                 '----2----'               '-1-'  not marked
    run                 Linear   one function     Linear   tanh   lambda

A chain is found when a pass reaches its first layer. The layers are traced on the
inputs of that pass, once for each shape of inputs. The chain is measured once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.functions.dropout import drawn_mask
from chainer_kernels.fusion import products
from chainer_kernels.fusion.chains import TAKES_ANOTHER_SHAPE, Chain, traced
from chainer_kernels.fusion.heads import heads_of, unobserved
from chainer_kernels.fusion.measuring import FusionChoice, measured
from chainer_kernels.fusion.perceptrons import Perceptron, is_small
from chainer_kernels.fusion.side_inputs import SideInputs, Surroundings
from chainer_kernels.fusion.tracing import NotPointwise
from chainer_kernels.fusion.trust import why_not
from chainer_kernels.hooks import has_hooks, is_quiet
from chainer_kernels.layouts import are_alike

#: Largest number of input shapes for which a chain is traced; it is unfused for others.
_MOST_SHAPES = 64

Layer = Callable[..., Any]
Span = tuple[int, int]


class _Found(NamedTuple):
    """The result of a search for a chain that begins at a layer.

    Attributes:
        layers: The layers that were searched. The last one ended the search; it is
            ``None`` at the end of the list.
        n_layers: Number of layers in the chain; 0 if there is no chain.
        chain: The chain, or ``None``.
        takers: Places of the layers with side inputs within the chain.
    """

    layers: tuple[Layer | None, ...]
    n_layers: int = 0
    chain: Chain | None = None
    takers: tuple[int, ...] = ()

    def is_of(self, layers: Sequence[Layer], index: int) -> bool:
        """Returns whether a list still has the same layers at an index."""
        n = len(self.layers)
        found = (*layers[index : index + n], None)[:n]
        return len(found) == n and all(a is b for a, b in zip(self.layers, found))


class Fusion:
    """The chains in a list of layers, and whether each is fused.

    Args:
        decisions: Whether to fuse each chain, by its span: the first position and the
            position after the last one. With ``None``, each chain is measured when it
            is found.
        waits: Whether chains are measured, but run unfused until :meth:`decide` is
            called.
        only_exact: Whether to fuse only chains that equal the single functions bit for
            bit, so that no decision changes a result.

    Attributes:
        decisions: Whether each chain is fused, by its span.
        choices: Measurements, by the span of their chain.
        reasons: The reason why a layer is in no chain, by its position.
        waits: Whether chains run unfused until :meth:`decide` is called.
        is_early: Whether a layer without a size may begin a chain, which can be
            measured only later.
    """

    def __init__(
        self,
        decisions: dict[Span, bool] | None = None,
        waits: bool = False,
        only_exact: bool = False,
    ) -> None:
        self._set(decisions or {})
        self._is_decided = decisions is not None
        self.choices: dict[Span, FusionChoice] = {}
        self.reasons: dict[int, str] = {}
        self.waits, self.is_early = waits, False
        self._only_exact = only_exact
        self._chains: dict[tuple, _Found] = {}
        # Positions inside chains that will be fused: no other chain begins there.
        self._within: set[int] = set()

    def __deepcopy__(self, memo: dict) -> Fusion:
        """Returns a `Fusion` for a copy of the layers, with the same decisions."""
        copied = Fusion(self.decisions, self.waits, self._only_exact)
        copied._is_decided = self._is_decided
        return copied

    def __reduce__(self) -> tuple:
        """Pickles decisions only; compiled code stays in its process."""
        decisions = self.decisions if self._is_decided else None
        return Fusion, (decisions, self.waits, self._only_exact)

    def decide(self, decisions: dict[Span, bool]) -> None:
        """Replaces the decisions: from now on, only the chosen chains are fused.

        Args:
            decisions: Whether to fuse each chain, by its span.
        """
        self._set(decisions)
        self._is_decided, self.waits = True, False

    def _set(self, decisions: Mapping[Span, bool]) -> None:
        self.decisions: dict[Span, bool] = dict(decisions)
        self._ends = {start: end for (start, end), fused in decisions.items() if fused}

    def run(
        self,
        layers: Sequence[Layer],
        index: int,
        position: int,
        value: Any,
        around: Surroundings,
    ) -> tuple[int, Any] | None:
        """Runs the chain that begins at a layer, if there is one to fuse.

        Args:
            layers: The layers. Nothing else runs between them.
            index: Index of the next layer in ``layers``.
            position: Position of that layer in decisions and reports.
            value: Input of the next layer, or a tuple of inputs.
            around: The context of that layer.

        Returns:
            How many layers have run, and the output of the last one. ``None`` if no
            chain was run.
        """
        if self._is_decided and position not in self._ends:
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
        taken = [around.side_inputs(run[place]) for place in found.takers]
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
            with unobserved(run):
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
        # Copies of a model may alternate, and a layer may lose outputs, as by pruning.
        place = id(layers), index, position
        n_outputs = products.n_outputs(first) if has_product else 0
        like = len(inputs), inputs[0].shape, bool(chainer.config.train), n_outputs
        found = self._chains.get((*place, *like))
        if found is not None and found.is_of(layers, index):
            return found
        stop = len(layers)
        if self._is_decided:
            # In another mode, such as without dropout, a longer one might be found.
            stop = index + self._ends[position] - position
        trusted, takers = self._trusted(
            layers[index:stop], position, inputs, around, has_product
        )
        end = index + len(trusted)
        found = _Found((*trusted, layers[end] if end < len(layers) else None))
        # A layer without a size gets its size in a plain call.
        ends = layers[end : end + 1] if has_product else []
        is_sized = n_outputs is not None and not any(map(products.is_unsized, ends))
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
        """Returns layers that may be traced, and their side inputs by place."""
        trusted, takers, n_rows = [], {}, len(inputs[0])
        is_perceptron = has_product and is_small(layers[0], n_rows)
        for place, layer in enumerate(layers):
            taken = around.side_inputs(layer)
            if has_product and place == 0:
                reason = None
            elif is_perceptron and not takers and is_small(layer, n_rows):
                is_plain = around.is_plain(position + place)
                reason = None if is_plain else "its weights are not its own"
            elif taken is None:
                reason = why_not(layer)
            # Side inputs must have the shape of the product, which is not known yet.
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
            arrays, side_inputs = _arrays(inputs), {}
            for place, taken in takers.items():
                if place < len(layers):
                    side_inputs[place] = range(len(arrays), len(arrays) + len(taken))
                    arrays += _arrays(taken)
            try:
                with unobserved(layers):
                    chain = _chain(layers, arrays, side_inputs)
            except NotPointwise as error:
                self.reasons[position + error.layer] = error.reason
                layers = layers[: error.layer]
                continue
            except Exception:
                # The plain call of the layer raises it again, with its position.
                break
            program = chain.program
            if len(program.labels) < 2:
                break
            if self._only_exact and not program.is_exact:
                self.reasons[position] = f"{program.labels[0]} begins an inexact chain"
                break
            return _Found(found.layers, len(layers), chain, tuple(side_inputs))
        return found


def _chain(
    layers: Sequence[Layer], arrays: Sequence[np.ndarray], side_inputs: SideInputs
) -> Chain:
    """Returns layers as a chain of the kind that fits them.

    Raises:
        NotPointwise: If the layers cannot run as one chain.
        Exception: If a layer raises it.
    """
    if sum(map(products.is_product, layers)) > 1:
        return Perceptron(layers, arrays[0])
    return traced(layers, arrays, side_inputs)


def _adds_up(chain: Chain, inputs: Sequence[Any]) -> bool:
    """Returns whether a chain adds up gradients of an input that it uses several times.

    If other functions add to the same gradient, fusing changes the order of additions.
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
        like: The array that masks are applied to.
        position: Position of the first layer of the chain.
        enter: Called with the position of a layer before its masks are drawn.
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
