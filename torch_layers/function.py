"""One call of a module of PyTorch, as a function in Chainer's graph.

::

    Chainer    x, weight, bias --> TorchFunction --> y         arrays
                    |                              ^
    PyTorch    leaf for x -----> graph of module --|           the same memory

Between two such functions only arrays pass, so each call has a small graph of PyTorch
of its own. It belongs to the function, and is released by its backward.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import chainer
import torch
from torch.utils.hooks import RemovableHandle

from chainer_kernels.catalogue import Backward
from divisible.running_averages import AveragingFunction
from torch_layers.arrays import address_of, to_array, to_tensor
from torch_layers.halves import (
    Gradients,
    Graph,
    SecondHalf,
    edge_of,
    first_half,
    whole,
)
from torch_layers.norms import collecting
from torch_layers.saved_tensors import saved_arrays
from torch_layers.structures import Slot, with_leaves, without_leaves

Array = Any

# Chainer's constructor, without checks of the arguments.
_unchecked = chainer.Variable._init_unchecked
# The structure of a single tensor.
_ONE = Slot(0)


class CalledLayer(Protocol):
    """The layer whose module a function calls.

    Attributes:
        module: The module.
        norms: The batch normalizations in it that have running averages.
    """

    module: torch.nn.Module
    norms: Sequence[torch.nn.Module]

    def contexts(self) -> list[AbstractContextManager]:
        """Returns the contexts of a call."""

    def share_parameters(self) -> None:
        """Gives the module the memory that the parameters of the link have."""

    def call(self, structure: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Calls the module."""


class TorchFunction(AveragingFunction):
    """A call of the module of a layer.

    Its inputs are the leaves among the arguments of the call, and the parameters of the
    module that have a gradient. So Chainer finds the parameters.

    Args:
        layer (TorchLayer): The layer.
        structure: The arguments of the call, with slots for its leaves; ``None`` if
            each is a leaf.
        needed: For each leaf whether it is a variable whose gradient is needed.
        parameters: The parameters of the module that have a gradient.
    """

    #: The gradients of inputs and of weights may be asked for one after the other.
    taken_apart = Backward(is_splittable=True, has_arrays=True)

    _graph: Graph | None = None
    # The other half of the backward, and the indexes of its results.
    _half: tuple[SecondHalf, list[int]] | None = None

    def __init__(
        self,
        layer: CalledLayer,
        structure: Any,
        needed: Sequence[bool],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self._layer, self._structure = layer, structure
        self._needed, self._parameters = needed, parameters

    @property
    def label(self) -> str:
        """The name of the function, for hooks and errors."""
        return f"TorchLayer({type(self._layer.module).__name__})"

    def has_averages(self) -> bool:
        """Returns whether the module has batch normalization with running averages."""
        return bool(self._layer.norms)

    def apply(self, inputs: tuple[Any, ...]) -> tuple[chainer.Variable, ...]:
        """Computes the outputs; see :meth:`chainer.FunctionNode.apply`.

        Without hooks, the checks that a module makes itself are left out: they take
        longer than a small module.

        Args:
            inputs: The leaves, then the parameters of the link.
        """
        if chainer.get_function_hooks() or chainer.config.debug:
            return super().apply(inputs)
        n_leaves = len(self._needed)
        variables = [chainer.as_variable(x) for x in inputs[:n_leaves]]
        outputs = self.forward(tuple([x.raw_array for x in variables]))
        needs_gradient = True in self._needed or bool(self._parameters)
        found = [_unchecked(data=y, requires_grad=needs_gradient) for y in outputs]
        self._input_layouts = (None,) * len(inputs)
        self._output_layouts = (None,) * len(outputs)
        self._output_count = len(outputs)
        if self._graph is not None:
            self.rank = max([x.rank for x in variables], default=0)
            nodes = [y.node for y in found]
            for node in nodes:
                node.creator_node = self
            self.inputs = tuple([x.node for x in (*variables, *inputs[n_leaves:])])
            self.outputs = tuple(map(weakref.ref, nodes))
            self.lazy_grad_sum = chainer.config.lazy_grad_sum
        return tuple(found)

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Calls the module.

        Args:
            arrays: The arrays of the leaves. Those of the parameters may follow.
        """
        has_graph = chainer.config.enable_backprop
        leaves, given = [], []
        for array, is_needed in zip(arrays, self._needed):
            leaf = to_tensor(array)
            leaves.append(leaf)
            if has_graph and is_needed and _is_continuous(leaf):
                # The graph keeps the leaf, and so its memory, needed or not; but not
                # the memory of a view.
                leaf = leaf.requires_grad_().view_as(leaf)
            given.append(leaf)
        contexts = self._layer.contexts()
        if self.collect is not None:
            contexts.append(collecting(self.collect))
        if torch.is_grad_enabled() is not has_graph:
            contexts.append(torch.enable_grad() if has_graph else torch.no_grad())
        n_hooks = RemovableHandle.next_id
        if contexts:
            with ExitStack() as stack:
                for each in contexts:
                    stack.enter_context(each)
                y = self._layer.call(self._structure, given)
        else:
            y = self._layer.call(self._structure, given)
        # PyTorch refuses this itself where an input has a gradient.
        if any([leaf._version for leaf in leaves]):
            raise RuntimeError(
                f"{self.label}: an in-place operation has changed an input, which other"
                f" layers, and the script, may still read. Let the module write"
                f" elsewhere, as by nn.ReLU(inplace=False)"
            )
        tensors: list[torch.Tensor] = []
        if isinstance(y, torch.Tensor):
            tensors.append(y)
            self._outputs = _ONE
        else:
            self._outputs = without_leaves(y, torch.is_tensor, tensors)
            if not tensors:
                raise TypeError(
                    f"{self.label}: the module returned a {type(y).__name__} without a"
                    f" tensor that another layer could get. Let its forward return"
                    f" tensors, or tuples, lists and dictionaries of them"
                )
        # Outputs without a gradient, and the indexes of the slots of the others.
        self._others: dict[int, Array] = {}
        self._numbers: list[int] = []
        outputs = []
        # The graph of a forward that runs again has the same outputs.
        may_have = has_graph or any(self._needed) or bool(self._parameters)
        for i, tensor in enumerate(tensors):
            if may_have and (
                tensor.requires_grad if has_graph else _is_continuous(tensor)
            ):
                self._numbers.append(i)
                outputs.append(tensor)
            else:
                self._others[i] = to_array(tensor)
        if has_graph:
            has_hooks = RemovableHandle.next_id != n_hooks
            self._keep_graph(outputs, leaves, has_hooks)
        return tuple([to_array(tensor) for tensor in outputs])

    def _keep_graph(
        self,
        outputs: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        has_hooks: bool,
    ) -> None:
        """Keeps what the backward needs, without the inputs and outputs themselves."""
        for leaf in leaves:
            if leaf.requires_grad:
                leaf.data = _empty(leaf.dtype)
        self._leaves = leaves
        self._graph = Graph(tuple([edge_of(y) for y in outputs]), has_hooks)

    def retained(self) -> Iterator[Array]:
        """Yields the arrays that the graph of PyTorch keeps, some twice."""
        if self._graph is not None:
            yield from saved_arrays(self._graph.outputs, self._parameters)

    def outputs_of(self, variables: Sequence[chainer.Variable]) -> Any:
        """Returns what the module has returned, with variables as its leaves.

        Args:
            variables: The result of :meth:`apply`.
        """
        if self._outputs is _ONE and variables:
            return variables[0]
        leaves = dict(zip(self._numbers, variables))
        for i, array in self._others.items():
            leaves[i] = _unchecked(data=array, requires_grad=False)
        self._others = {}
        return with_leaves(self._outputs, leaves)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes gradients, of variables; see :meth:`gradient_arrays`."""
        if chainer.config.enable_backprop:
            raise RuntimeError(
                f"{self.label}: a gradient of a gradient does not pass through a"
                f" TorchLayer. Compute it in a module of PyTorch, with"
                f" torch.autograd.grad(..., create_graph=True)"
            )
        given = [None if g is None else g.array for g in grad_outputs]
        found = self._gradients(indexes, given)
        n_leaves = len(self._needed)
        # Hooks change the gradients of parameters in place, so each gets memory of its
        # own. Parameters that a module only adds would share the output's gradient.
        seen = {address_of(array) for array in given if array is not None}
        arrays = []
        for i, gradient in zip(indexes, found):
            array = None if gradient is None else to_array(gradient)
            if gradient is not None and gradient.layout is torch.strided:
                memory = gradient.untyped_storage().data_ptr()
                if i >= n_leaves and (memory in seen or 0 in array.strides):
                    array = array.copy()
                seen.add(memory)
            arrays.append(array)
        return tuple(
            [
                None if array is None else _unchecked(data=array, requires_grad=False)
                for array in arrays
            ]
        )

    def gradient_arrays(
        self, indexes: tuple[int, ...], output_gradients: Sequence[Array | None]
    ) -> list[Array | None]:
        """Computes the gradients of some leaves and parameters.

        If those of leaves are asked for alone, the others come in another call, with
        the same gradients of outputs: those of parameters, and those of leaves that
        are weights of another layer.

        Args:
            indexes: Positions among the inputs.
            output_gradients: An array for each output; ``None`` where there is none.

        Returns:
            An array for each index; ``None`` where no gradient arrives. Arrays may
            share memory with each other, and with those given.
        """
        return [
            None if gradient is None else to_array(gradient)
            for gradient in self._gradients(indexes, output_gradients)
        ]

    def _gradients(
        self, indexes: tuple[int, ...], output_gradients: Sequence[Array | None]
    ) -> Gradients:
        """Computes the gradients of some leaves and parameters, as tensors."""
        # Parameters may have got the arrays of this call back, as with two versions.
        self._layer.share_parameters()
        if self._half is not None:
            (half, later), self._half = self._half, None
            return _at(indexes, later, half.run())
        graph, self._graph = self._graph, None
        if graph is None:
            raise RuntimeError(
                f"{self.label}: the graph of this call has been used by a backward"
                f" already. Call the layer again"
            )
        leaves, self._leaves = self._leaves, None
        # The engine rounds a gradient of another dtype than its output.
        gradients = [None if g is None else to_tensor(g) for g in output_gradients]
        tensors = {i: leaf for i, leaf in enumerate(leaves) if leaf.requires_grad}
        tensors.update(enumerate(self._parameters, len(leaves)))
        now = [i for i in indexes if i in tensors]
        targets = [tensors[i] for i in now]
        if len(now) < len(tensors) and max(now, default=-1) < len(leaves):
            later = [i for i in tensors if i not in now]
            weights = [tensors[i] for i in later]
            found, half = first_half(graph, targets, weights, gradients)
            self._half = half, later
        else:
            found = whole(graph, targets, gradients)
        return _at(indexes, now, found)


@functools.cache
def _empty(dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor without elements, the memory of leaves that nobody reads."""
    return torch.empty(0, dtype=dtype)


def _is_continuous(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has numbers of a kind that can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def _at(
    indexes: Sequence[int], known: Sequence[int], gradients: Gradients
) -> Gradients:
    """Returns gradients at other indexes than those that they are for."""
    if tuple(indexes) == tuple(known):
        return gradients
    found = dict(zip(known, gradients))
    return [found.get(i) for i in indexes]
