"""Layers of a list that run as one function where that is faster.

::

    layers              Linear   relu   dropout   Linear   tanh   lambda
    chains found                 '----2----'               '-1-'  not marked
    run                 Linear   one function     Linear   tanh   lambda

A chain is found when its first layer is reached: it is traced on the inputs that are
there, for each shape of them anew, and measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels import switch
from chainer_kernels.functions.dropout import drawn_mask
from chainer_kernels.fusion.function import FusedFunction
from chainer_kernels.fusion.generated import Compiled
from chainer_kernels.fusion.headed import HeadedLoops
from chainer_kernels.fusion.heads import heads_of, is_ready, nobody_looks
from chainer_kernels.fusion.measuring import Choice, measured
from chainer_kernels.fusion.normalized import NormalizedFunction
from chainer_kernels.fusion.tracing import NotPointwise, trace, trace_headed
from chainer_kernels.fusion.trust import why_not
from chainer_kernels.layouts import are_float32, memory_order

#: A chain whose inputs have more shapes than this runs unfused in further ones.
_MOST_SHAPES = 64

Layer = Callable[..., Any]
Span = tuple[int, int]


class _Chain(NamedTuple):
    """Layers from one position on that were traced.

    Attributes:
        layers: All that might have been traced from there on.
        n_layers: How many of them are one function; 0 for none.
        compiled: What they compute; after a batch normalization, if they begin so.
        head: That batch normalization.
        place: Which of the inputs it takes.
    """

    layers: tuple[Layer, ...]
    n_layers: int = 0
    compiled: Compiled | HeadedLoops | None = None
    head: chainer.Link | None = None
    place: int = 0


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
    """

    def __init__(
        self,
        decisions: dict[Span, bool] | None = None,
        waits: bool = False,
        only_exact: bool = False,
    ) -> None:
        self._is_decided = decisions is not None
        self.decisions: dict[Span, bool] = dict(decisions or {})
        self.choices: dict[Span, Choice] = {}
        self.reasons: dict[int, str] = {}
        self.waits = waits
        self._only_exact = only_exact
        self._chains: dict[tuple, _Chain] = {}

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
        self.decisions = dict(decisions)
        self._is_decided, self.waits = True, False

    def run(
        self,
        layers: Sequence[Layer],
        index: int,
        position: int,
        value: Any,
        enter: Callable[[int], None],
        is_shared: bool = False,
    ) -> tuple[int, Any] | None:
        """Runs the chain that begins at a layer, if there is one and it is fused.

        Args:
            layers: The layers, between any of which nothing else happens.
            index: Which of them is next.
            position: What its position is called.
            value: Its input, or a tuple of them.
            enter: Called with a position before a layer there draws random numbers.
            is_shared: Whether something else uses the input as well.

        Returns:
            How many layers have run, and what the last one returned; or ``None``.
        """
        inputs = value if isinstance(value, tuple) else (value,)
        if not inputs or not _is_quiet() or not _are_alike(inputs):
            return None
        arrays = [v.array if isinstance(v, chainer.Variable) else v for v in inputs]
        chain = self._chain(layers, index, position, arrays)
        if not chain.n_layers:
            return None
        run = chain.layers[: chain.n_layers]
        if any(_has_hooks(layer) for layer in run):
            return None
        if chain.head is not None and not is_ready(chain.head, arrays[chain.place]):
            return None
        # Gradients of the input would be added up in another order.
        if self._only_exact and is_shared and chain.compiled.program.adds_up_inputs:
            return None
        span = position, position + chain.n_layers
        if span not in self.decisions and not self._is_decided:
            self._measure(span, chain, arrays)
        if self.waits or not self.decisions.get(span, False):
            return None
        return chain.n_layers, _fused(chain, position, inputs, enter)

    def _chain(
        self,
        layers: Sequence[Layer],
        index: int,
        position: int,
        arrays: Sequence[np.ndarray],
    ) -> _Chain:
        # Copies of a model may take turns.
        place = id(layers), index, position
        key = (*place, len(arrays), arrays[0].shape, bool(chainer.config.train))
        chain = self._chains.get(key)
        following = tuple(layers[index:])
        if chain is not None and _are_the_same(chain.layers, following):
            return chain
        trusted = []
        for offset, layer in enumerate(following):
            reason = why_not(layer)
            if reason is not None:
                self.reasons.setdefault(position + offset, reason)
                break
            trusted.append(layer)
        chain = _Chain(following)
        # What has no size yet gets it in a call that counts.
        if any(head.avg_mean is None for head in heads_of(trusted)):
            return chain
        if sum(known[:3] == place for known in self._chains) >= _MOST_SHAPES:
            return chain
        if trusted:
            chain = self._traced(chain, trusted, position, arrays)
        self._chains[key] = chain
        return chain

    def _traced(
        self,
        chain: _Chain,
        layers: Sequence[Layer],
        position: int,
        arrays: Sequence[np.ndarray],
    ) -> _Chain:
        """Returns the longest chain that begins with these layers."""
        while layers:
            heads = heads_of(layers)
            try:
                with nobody_looks(layers):
                    found = _tried(layers, arrays, bool(heads))
            except NotPointwise as error:
                self.reasons[position + error.layer] = error.reason
                layers = layers[: error.layer]
                continue
            except Exception:
                # Whoever calls the layer gets to see it, with its position.
                break
            program = found["compiled"].program
            if len(program.labels) < 2:
                break
            if self._only_exact and not program.is_exact:
                self.reasons[position] = f"{program.labels[0]} begins what is not exact"
                break
            return chain._replace(n_layers=len(layers), **found)
        return chain

    def _measure(self, span: Span, chain: _Chain, arrays: Sequence[np.ndarray]) -> None:
        layers = chain.layers[: chain.n_layers]

        def unfused(*values: chainer.Variable) -> chainer.Variable:
            result: Any = values
            for layer in layers:
                result = layer(*result) if isinstance(result, tuple) else layer(result)
            return result

        def fused(*values: chainer.Variable) -> chainer.Variable:
            return _fused(chain, span[0], values, lambda position: None)

        head = chain.head
        parameters = [] if head is None else [head.gamma, head.beta]
        with nobody_looks(layers):
            choice = measured(span, chain.compiled, unfused, fused, arrays, parameters)
        self.choices[span] = choice
        self.decisions[span] = choice.is_fused


def _tried(
    layers: Sequence[Layer], arrays: Sequence[np.ndarray], has_head: bool
) -> dict[str, Any]:
    """Traces layers, and returns what a chain has of it."""
    if not has_head:
        return {"compiled": Compiled(trace(layers, arrays))}
    headed = trace_headed(layers, arrays)
    if not is_ready(headed.link, arrays[headed.place]):
        raise NotPointwise(0, "a batch normalization that is not of float32 channels")
    return {
        "compiled": HeadedLoops(headed.program),
        "head": headed.link,
        "place": headed.place,
    }


def _fused(
    chain: _Chain,
    position: int,
    inputs: Sequence[Any],
    enter: Callable[[int], None],
) -> chainer.Variable:
    """Runs a chain on inputs, and draws what its layers draw."""
    masks, drawn = [], None
    first = inputs[0]
    like = first.array if isinstance(first, chainer.Variable) else first
    for mask in chain.compiled.program.masks:
        if mask.layer != drawn:
            enter(position + mask.layer)
            drawn = mask.layer
        masks.append(drawn_mask(like, mask.ratio))
    link = chain.head
    if link is None:
        (y,) = FusedFunction(chain.compiled, masks).apply(tuple(inputs))
        return y
    moving = None, None
    if not chainer.config.in_recomputing:
        moving = link.avg_mean, link.avg_var
    function = NormalizedFunction(
        chain.compiled,
        masks,
        eps=link.eps,
        mean=moving[0],
        var=moving[1],
        decay=link.decay,
        axis=link.axis,
    )
    x = inputs[chain.place]
    others = [each for i, each in enumerate(inputs) if i != chain.place]
    (y,) = function.apply((x, link.gamma, link.beta, *others))
    return y


def _are_the_same(one: Sequence[Layer], other: Sequence[Layer]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))


def _is_quiet() -> bool:
    """Returns whether nobody looks at the functions in between."""
    return (
        switch.is_ours()
        and not _minding(chainer.get_function_hooks())
        and not _minding(chainer._get_link_hooks())
        and not chainer.is_debug()
    )


def _minding(hooks: Mapping[str, Any]) -> bool:
    """Returns whether a hook wants to see each function.

    One that does not says so by an attribute ``minds_fusion`` that is false.
    """
    return any(getattr(hook, "minds_fusion", True) for hook in hooks.values())


def _has_hooks(layer: Layer) -> bool:
    return isinstance(layer, chainer.Link) and any(
        link._n_local_link_hooks for link in layer.links()
    )


def _are_alike(inputs: Sequence[Any]) -> bool:
    """Returns whether inputs are of float32, one shape and one memory order."""
    arrays = []
    for each in inputs:
        array = each.array if isinstance(each, chainer.Variable) else each
        if not are_float32(array):
            return False
        arrays.append(array)
    first = arrays[0]
    return (
        first.size > 0
        and first.ndim > 0
        and all(a.shape == first.shape and a.strides == first.strides for a in arrays)
        and memory_order(first) is not None
    )
