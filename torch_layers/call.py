"""One call of a module, or of several small ones, with a graph of PyTorch of its own.

::

    leaf for x, weight, bias --> module --> y           forward
    gx, gweight, gbias <-------- graph <--- gy          backward, whole or in halves

The graph begins at leaves and ends at the outputs. It belongs to the call, and is
released by its backward. A call may go on with the modules of the next layers::

    leaf for x, weight, bias --> Linear --> ReLU --> Linear --> y
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from torch_layers.arrays import to_array
from torch_layers.halves import (
    Gradients,
    Graph,
    SecondHalf,
    edge_of,
    first_half,
    whole,
)
from torch_layers.norms import Collect, collecting
from torch_layers.saved_tensors import saved_arrays


class CalledLayer(Protocol):
    """A layer whose module is called.

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


class ModuleCall:
    """A call of the module of a layer.

    Args:
        layer (TorchLayer): The layer.
        parameters: The parameters of the module that have a gradient.

    Attributes:
        layers: The layer, and those with which the call has gone on.
        parameters: Their parameters that have a gradient, those of the last layer
            first.
    """

    __slots__ = ("_graph", "_half", "_has_hooks", "_leaves", "layers", "parameters")

    def __init__(self, layer: CalledLayer, parameters: Sequence[torch.Tensor]) -> None:
        self.layers, self.parameters = [layer], parameters
        self._graph: Graph | None = None
        # The other half of the backward, and the indexes of its results.
        self._half: tuple[SecondHalf, list[int]] | None = None

    @property
    def label(self) -> str:
        """The name of the layers, for hooks and errors."""
        names = [type(layer.module).__name__ for layer in self.layers]
        return f"TorchLayer({', '.join(names)})"

    def run(
        self,
        structure: Any,
        leaves: Sequence[torch.Tensor],
        needed: Sequence[bool],
        has_graph: bool,
        collect: Collect | None = None,
    ) -> Any:
        """Calls the module.

        Args:
            structure: The arguments, with slots for their leaves; ``None`` if each is
                a leaf.
            leaves: Tensors that belong to this call, without a graph.
            needed: For each leaf whether its gradient is needed.
            has_graph: Whether there is a backward.
            collect: Gets the statistics of batch normalizations; see
                :class:`~divisible.running_averages.AveragingFunction`.

        Returns:
            The result of the module.

        Raises:
            RuntimeError: If the module has changed an input in place, or in
                ``torch.inference_mode``.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{self.label}: tensors that are made in torch.inference_mode() cannot"
                f" be trained. Leave it out: pipe.evaluate, pipe.predict and"
                f" chainer.no_backprop_mode() keep no graph either"
            )
        (layer,) = self.layers
        contexts = layer.contexts()
        if collect is not None:
            contexts.append(collecting(collect))
        if torch.is_grad_enabled() is not has_graph:
            contexts.append(torch.enable_grad() if has_graph else torch.no_grad())
        n_hooks = RemovableHandle.next_id
        if contexts:
            with ExitStack() as stack:
                for each in contexts:
                    stack.enter_context(each)
                y = layer.call(structure, _given(leaves, needed, has_graph))
        else:
            y = layer.call(structure, _given(leaves, needed, has_graph))
        # PyTorch refuses this itself where an input has a gradient.
        if any([leaf._version for leaf in leaves]):
            self._refuse_in_place()
        if has_graph:
            self._leaves = leaves
            self._has_hooks = RemovableHandle.next_id != n_hooks
        return y

    def add(self, layer: CalledLayer, parameters: Sequence[torch.Tensor]) -> None:
        """Adds the next layer, whose module :meth:`go_on` calls.

        Args:
            layer (TorchLayer): The layer, which is simple.
            parameters: The parameters of its module that have a gradient, none of which
                the call has already.
        """
        self.layers.append(layer)
        self.parameters = (*parameters, *self.parameters)

    def go_on(self, x: torch.Tensor) -> Any:
        """Calls the module of the layer that was added, within the same graph.

        Args:
            x: The result of the call so far.

        Returns:
            The result of the module.

        Raises:
            RuntimeError: If the module has changed its input in place.
        """
        version, n_hooks = x._version, RemovableHandle.next_id
        module = self.layers[-1].module
        # A simple module computes the same in training and evaluation.
        if torch.is_grad_enabled():
            y = module(x)
        else:
            with torch.enable_grad():
                y = module(x)
        if x._version != version:
            self._refuse_in_place()
        # Hooks of all modules, which a simple one calls as well, may register others.
        self._has_hooks |= RemovableHandle.next_id != n_hooks
        return y

    def _refuse_in_place(self) -> NoReturn:
        name = type(self.layers[-1].module).__name__
        raise RuntimeError(
            f"TorchLayer({name}): an in-place operation has changed an input, which"
            f" other layers, and the script, may still read. Let the module write"
            f" elsewhere, as by nn.ReLU(inplace=False)"
        )

    def keep_graph(self, outputs: Sequence[torch.Tensor]) -> None:
        """Keeps what the backward needs, without the inputs and outputs themselves.

        Args:
            outputs: The tensors of the result that have a gradient.
        """
        for leaf in self._leaves:
            if leaf.requires_grad:
                leaf.data = _empty(leaf.dtype)
        self._graph = Graph(tuple([edge_of(y) for y in outputs]), self._has_hooks)

    def retained(self) -> Iterator[Any]:
        """Yields the arrays that are kept for the backward or its second half.

        Some come twice.
        """
        if self._graph is not None:
            yield from saved_arrays(self._graph.outputs, self.parameters)
        if self._half is not None:
            half, _ = self._half
            yield from saved_arrays(half.edges, self.parameters)
            yield from map(to_array, half.gradients())

    @property
    def is_halfway(self) -> bool:
        """Whether the first half of the backward has run, and the second one waits."""
        return self._half is not None

    def gradients(
        self, indexes: Sequence[int], output_gradients: Gradients
    ) -> Gradients:
        """Computes the gradients of some leaves and parameters.

        If those of leaves are asked for alone, the others come in another call, with
        the same gradients of outputs: those of parameters, and those of leaves that
        are weights of another layer.

        Args:
            indexes: Positions among the leaves and, after them, the parameters.
            output_gradients: A tensor for each output; ``None`` where there is none.

        Returns:
            A tensor for each index; ``None`` where no gradient arrives.

        Raises:
            RuntimeError: If a backward has used the graph already.
        """
        # Parameters may have got the arrays of this call back, as with two versions.
        for layer in self.layers:
            layer.share_parameters()
        if self._half is not None:
            (half, later), self._half = self._half, None
            return _at(indexes, later, half.run())
        graph, self._graph = self._graph, None
        if graph is None:
            raise RuntimeError(
                f"{self.label}: the graph of this call has been used by a backward"
                f" already. Call the layer again"
            )
        leaves, self._leaves = self._leaves, ()
        n_leaves, tensors = len(leaves), (*leaves, *self.parameters)
        asked = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
        asked += range(n_leaves, len(tensors))
        # A module may have frozen parameters in its forward.
        known = dict.fromkeys(i for i in asked if tensors[i].requires_grad)
        now = [i for i in indexes if i in known]
        targets = [tensors[i] for i in now]
        is_half = max(indexes, default=-1) < n_leaves and not {*asked} <= {*indexes}
        if is_half:
            later = sorted(known.keys() - now)
            weights = [tensors[i] for i in later]
            found, half = first_half(graph, targets, weights, output_gradients)
            self._half = half, later
        else:
            found = whole(graph, targets, output_gradients)
        return _at(indexes, now, found)


def is_continuous(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has numbers of a kind that can have a gradient.

    Example:
        >>> is_continuous(torch.ones(1)), is_continuous(torch.tensor(1))
        (True, False)
    """
    return tensor.is_floating_point() or tensor.is_complex()


def _given(
    leaves: Sequence[torch.Tensor], needed: Sequence[bool], has_graph: bool
) -> Sequence[torch.Tensor]:
    """Returns the tensors that a module gets for the leaves of a call."""
    if not has_graph:
        return leaves
    # The graph keeps the leaf, and so its memory, needed or not; but not the memory of
    # a view.
    return [
        leaf.requires_grad_().view_as(leaf)
        if is_needed and is_continuous(leaf)
        else leaf
        for leaf, is_needed in zip(leaves, needed)
    ]


@functools.cache
def _empty(dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor without elements, the memory of leaves that nobody reads."""
    return torch.empty(0, dtype=dtype)


def _at(
    indexes: Sequence[int], known: Sequence[int], gradients: Gradients
) -> Gradients:
    """Returns gradients at other indexes than those that they are for."""
    if len(indexes) == len(known) and all(map(operator.eq, indexes, known)):
        return gradients
    found = dict(zip(known, gradients))
    return [found.get(i) for i in indexes]
