"""One call of a module of PyTorch, as a function in Chainer's graph.

::

    Chainer    x, weight, bias --> TorchFunction --> y         arrays
                    |                              ^
    PyTorch    leaf for x -----> graph of module --|           the same memory

Between two such functions only arrays pass, so each call has a small graph of PyTorch
of its own. It belongs to the function, and is released by its backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import chainer
import torch
from torch.utils.hooks import RemovableHandle

from chainer_kernels.catalogue import Backward
from divisible.running_averages import AveragingFunction
from torch_layers.arrays import to_array, to_tensor
from torch_layers.halves import Graph, SecondHalf, first_half, whole
from torch_layers.norms import collecting
from torch_layers.saved_tensors import saved_arrays
from torch_layers.structures import with_leaves, without_leaves

Array = Any


class CalledLayer(Protocol):
    """The layer whose module a function calls.

    Attributes:
        module: The module.
        norms: The batch normalizations in it that have running averages.
    """

    module: torch.nn.Module
    norms: Sequence[torch.nn.Module]

    def contexts(
        self, inputs: Sequence[torch.Tensor]
    ) -> Iterator[AbstractContextManager]:
        """Yields the contexts of a call."""

    def call(self, structure: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Calls the module."""


class TorchFunction(AveragingFunction):
    """A call of the module of a layer.

    Its inputs are the leaves among the arguments of the call, and the parameters of the
    module that have a gradient. So Chainer finds the parameters.

    Args:
        layer (TorchLayer): The layer.
        structure: The arguments of the call, with slots for its leaves.
        needed: For each leaf whether it is a variable whose gradient is needed.
        parameters: The parameters of the module that have a gradient.
    """

    #: The gradients of inputs and of weights may be asked for one after the other.
    taken_apart = Backward(is_splittable=True)

    def __init__(
        self,
        layer: CalledLayer,
        structure: Any,
        needed: Sequence[bool],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self._layer, self._structure = layer, structure
        self._needed, self._parameters = needed, tuple(parameters)
        self._graph: Graph | None = None
        self._half: SecondHalf | None = None
        self._outputs: Any = None
        # Outputs without a gradient, by the index of their slot.
        self._others: dict[int, Array] = {}

    @property
    def label(self) -> str:
        """The name of the function, for hooks and errors."""
        return f"TorchLayer({type(self._layer.module).__name__})"

    def has_averages(self) -> bool:
        """Returns whether the module has batch normalization with running averages."""
        return bool(self._layer.norms)

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Calls the module.

        Args:
            arrays: The arrays of the leaves, then those of the parameters.
        """
        n_leaves = len(self._needed)
        leaves = [to_tensor(array) for array in arrays[:n_leaves]]
        has_graph = chainer.config.enable_backprop
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(has_graph))
            if has_graph:
                for leaf, is_needed in zip(leaves, self._needed):
                    if is_needed and leaf.dtype.is_floating_point:
                        leaf.requires_grad_()
            for each in self._layer.contexts(leaves):
                stack.enter_context(each)
            if self.collect is not None:
                stack.enter_context(collecting(self.collect))
            n_hooks = RemovableHandle.next_id
            y = self._layer.call(self._structure, leaves)
        tensors: list[torch.Tensor] = []
        self._outputs = without_leaves(y, torch.is_tensor, tensors)
        if has_graph:
            numbers = [i for i, t in enumerate(tensors) if t.requires_grad]
            self._graph = Graph(
                tuple([tensors[i] for i in numbers]),
                tuple([leaf for leaf in leaves if leaf.requires_grad]),
                self._parameters,
                RemovableHandle.next_id != n_hooks,
            )
            self._leaves = leaves
        else:
            # The graph of a forward that runs again has the same outputs.
            has_gradient = any(self._needed) or bool(self._parameters)
            numbers = [
                i
                for i, t in enumerate(tensors)
                if has_gradient and t.dtype.is_floating_point
            ]
        chosen = set(numbers)
        for i, tensor in enumerate(tensors):
            if i not in chosen:
                self._others[i] = to_array(tensor)
        self._numbers = numbers
        return tuple([to_array(tensors[i]) for i in numbers])

    def retained(self) -> Iterator[Array]:
        """Yields the arrays that the graph of PyTorch keeps, some twice."""
        if self._graph is not None:
            yield from saved_arrays(self._graph.outputs)

    def outputs_of(self, variables: Sequence[chainer.Variable]) -> Any:
        """Returns what the module has returned, with variables as its leaves.

        Args:
            variables: The result of :meth:`apply`.
        """
        leaves = dict(zip(self._numbers, variables))
        for i, array in self._others.items():
            leaves[i] = chainer.Variable(array, requires_grad=False)
        self._others = {}
        return with_leaves(self._outputs, leaves)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes the gradients of some leaves and parameters.

        If those of leaves are asked for alone, those of parameters come in another
        call, with the same gradients of outputs.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                f"{self.label}: a gradient of a gradient does not pass through a"
                f" TorchLayer. Compute it in a module of PyTorch, with"
                f" torch.autograd.grad(..., create_graph=True)"
            )
        n_leaves = len(self._needed)
        if self._half is not None:
            found = self._half.run()
            self._half = None
            return tuple([_variable(found[i - n_leaves]) for i in indexes])
        graph, self._graph = self._graph, None
        if graph is None:
            raise RuntimeError(
                f"{self.label}: the graph of this call has been used by a backward"
                f" already. Call the layer again"
            )
        leaves, self._leaves = self._leaves, None
        gradients = [
            None if g is None else to_tensor(g.array).to(y.dtype)
            for g, y in zip(grad_outputs, graph.outputs)
        ]
        of_leaves = [i for i in indexes if i < n_leaves and leaves[i].requires_grad]
        of_parameters = [i for i in indexes if i >= n_leaves]
        targets = [leaves[i] for i in of_leaves]
        if of_parameters or not self._parameters:
            targets += [self._parameters[i - n_leaves] for i in of_parameters]
            found = whole(graph, targets, gradients)
        else:
            found, self._half = first_half(graph, targets, gradients)
        by_index = dict(zip([*of_leaves, *of_parameters], found))
        return tuple([_variable(by_index.get(i)) for i in indexes])


def _variable(gradient: torch.Tensor | None) -> chainer.Variable | None:
    if gradient is None:
        return None
    return chainer.Variable(to_array(gradient), requires_grad=False)
