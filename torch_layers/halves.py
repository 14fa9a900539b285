"""The backward of PyTorch's graph in two halves, without computing anything twice.

::

    x <---- Addmm <---- Relu <---- Addmm <---- y       I: input gradients
              :                      :
              T <- weight            T <- weight       W: weight gradients, later

An operation *meets* weights if it has an input that depends on ``x`` and another that
depends on parameters alone. The first half computes the gradients of the inputs, and
records the gradient of the output of each operation that meets weights. The second
half runs each of these operations alone, for its weights.

Some gradients of weights are computed in the first half and kept for the second one:

- PyTorch's other operations, and functions of the user, compute the gradients of all
  their inputs in one piece, such as layer normalization;
- several operations use the parameter, such as all steps of an LSTM, and one of them
  alone would also pass its gradient on to the others;
- the forward registered a hook, which a second run would call again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import GradientEdge, get_gradient_edge

# Operations whose backward computes only the gradients that are asked for. Each has
# one output.
_APART = frozenset(
    f"{name}Backward0"
    for name in (
        "Addmm",
        "Baddbmm",
        "Bmm",
        "Convolution",
        "Linear",
        "Mm",
        "Mv",
        "Mul",
        "Add",
        "Sub",
    )
)
_LEAF = "AccumulateGrad"

_engine = torch.autograd.Variable._execution_engine

Gradients = Sequence[Optional[torch.Tensor]]


class Graph(NamedTuple):
    """The graph of one call of a module.

    Attributes:
        outputs: The places in the graph of the tensors that have a gradient.
        has_hooks: Whether the forward registered hooks of tensors.
    """

    outputs: tuple[GradientEdge, ...]
    has_hooks: bool = False


class _Part(NamedTuple):
    """An operation that meets weights.

    Attributes:
        edge: The place of its output in the graph.
        weights: Positions of the weights that only this operation uses.
    """

    edge: GradientEdge
    weights: tuple[int, ...]


def edge_of(tensor: torch.Tensor) -> GradientEdge:
    """Returns the place in the graph of a tensor that has a gradient."""
    node = tensor.grad_fn
    if node is None or isinstance(node, FunctionCtx):
        # A leaf; or a function of the user, which needs an owner.
        return get_gradient_edge(tensor)
    return GradientEdge(node, tensor.output_nr)


class SecondHalf:
    """The weight gradients that :func:`first_half` has left out.

    Args:
        weights: The weights.
        parts: The operations, each with the gradient of its output.
        known: Gradients that the first half has computed, by position.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        parts: Sequence[tuple[_Part, torch.Tensor | None]],
        known: dict[int, torch.Tensor | None],
    ) -> None:
        self._weights, self._parts, self._known = weights, parts, known

    @property
    def edges(self) -> list[GradientEdge]:
        """The places of the outputs of operations that are to run."""
        return [part.edge for part, _ in self._parts]

    def gradients(self) -> list[torch.Tensor]:
        """Returns the gradients that are held: of operations' outputs, and known."""
        held = [*(gradient for _, gradient in self._parts), *self._known.values()]
        return [gradient for gradient in held if gradient is not None]

    def run(self) -> list[torch.Tensor | None]:
        """Returns the gradients of all weights, and releases the graph."""
        found: list[Any] = [None] * len(self._weights)
        for i, gradient in self._known.items():
            found[i] = gradient
        for (edge, weights), gradient in self._parts:
            if gradient is None:
                continue
            targets = [self._weights[i] for i in weights]
            for i, g in zip(weights, _gradients((edge,), targets, (gradient,), False)):
                found[i] = g
        self._parts, self._known = (), {}
        return found


def whole(
    graph: Graph, targets: Sequence[torch.Tensor], output_gradients: Gradients
) -> Gradients:
    """Returns the gradients of some inputs and parameters, and releases the graph."""
    return _gradients(graph.outputs, targets, output_gradients, keeps_graph=False)


def first_half(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    output_gradients: Gradients,
) -> tuple[Gradients, SecondHalf]:
    """Computes the gradients of inputs, and leaves those of weights to later.

    Args:
        graph: The graph.
        inputs: The leaves whose gradients to compute.
        weights: The leaves whose gradients come later, such as parameters.
        output_gradients: A gradient for each output; ``None`` where there is none.

    Returns:
        The gradients of ``inputs``, and the other half.

    Example:
        >>> module, x = torch.nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
        >>> graph = Graph((get_gradient_edge(module(x)),))
        >>> weights = [*module.parameters()]
        >>> (gx,), half = first_half(graph, [x], weights, [torch.ones(3, 1)])
        >>> bool((gx == module.weight).all()), half.run()[0].tolist()
        (True, [[3.0, 3.0]])
    """
    parts = [] if graph.has_hooks else _parts(graph.outputs, inputs, weights)
    left_out = {i for part in parts for i in part.weights}
    now = [i for i in range(len(weights)) if i not in left_out]
    found = _gradients(
        graph.outputs,
        [*inputs, *(weights[i] for i in now), *(part.edge for part in parts)],
        output_gradients,
        keeps_graph=bool(parts),
    )
    n, n_now = len(inputs), len(inputs) + len(now)
    known = dict(zip(now, found[n:n_now]))
    return found[:n], SecondHalf(weights, list(zip(parts, found[n_now:])), known)


def _gradients(
    outputs: Sequence[GradientEdge],
    targets: Sequence[Any],
    output_gradients: Gradients,
    keeps_graph: bool,
) -> Gradients:
    if any([gy is None for gy in output_gradients]):
        given = [(y, gy) for y, gy in zip(outputs, output_gradients) if gy is not None]
        outputs, output_gradients = zip(*given) if given else ((), ())
    if not outputs or not targets:
        return [None] * len(targets)
    # torch.autograd.grad calls the same, and checks shapes before, as the engine does.
    # Its checks take as long as a small module.
    return _engine.run_backward(
        tuple(outputs),
        tuple(output_gradients),
        keeps_graph,
        create_graph=False,
        inputs=tuple(targets),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def _parts(
    outputs: Sequence[GradientEdge],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> list[_Part]:
    """Returns the operations that meet weights and can run for them alone.

    What an operation depends on is a number: bit 0 stands for the inputs, and bit
    ``i + 1`` for weight ``i``.
    """
    leaves = {id(tensor): 2 << i for i, tensor in enumerate(weights)}
    leaves.update((id(tensor), 1) for tensor in inputs)
    roots = [edge.node for edge in outputs]
    bits: dict[Any, int] = {}
    operands: dict[Any, list[Any]] = {}
    # The weights that an operation uses, and those that several use.
    used = many = 0
    meeting: list[tuple[Any, int]] = []
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if node in bits:
            continue
        if type(node).__name__ == _LEAF:
            bits[node] = leaves.get(id(node.variable), 0)
            continue
        below = operands.get(node)
        if below is None:
            below = [child for child, _ in node.next_functions if child is not None]
            unknown = [child for child in below if child not in bits]
            if unknown:
                operands[node] = below
                waiting.append(node)
                waiting += unknown
                continue
        both = own = 0
        for child in below:
            its = bits[child]
            both |= its
            if not its & 1:
                many |= own & its
                own |= its
        bits[node] = both
        if both & 1 and own:
            many |= used & own
            used |= own
            meeting.append((node, own))
    for node in roots:
        if not bits[node] & 1:
            many |= bits[node]
    parts = []
    for node, own in meeting:
        alone = own & ~many
        if alone and type(node).__name__ in _APART:
            own_weights = []
            while alone:
                own_weights.append((alone & -alone).bit_length() - 2)
                alone &= alone - 1
            parts.append(_Part(GradientEdge(node, 0), tuple(own_weights)))
    return parts
