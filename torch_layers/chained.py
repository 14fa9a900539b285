"""Neighbouring modules of PyTorch as one function in Chainer's graph.

Chainer's part of a call takes longer than a small module. In a stage, neighbours that
pass one tensor to each other share one::

    layers     Linear      ReLU       Linear     Unpack    Linear
    Chainer   [------ one function ------------]     -----[-- one --]---->  arrays
    PyTorch   [ graph ]-->[ graph ]-->[ graph ]-->                          tensors

Each module keeps a graph of its own. So the backward runs layer by layer, as without a
chain: each has its halves, adds the gradients of its weights, and then releases what it
kept. Results have the same bits.

To begin a graph and to run it backward takes longer than a small module. So a graph
goes on with the next modules while all are PyTorch's own, and pass few numbers. The
gradients of their weights then come together. A backward in two halves keeps the whole
graph for the second half.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import chainer
import torch

from torch_layers.arrays import to_array, to_tensor
from torch_layers.call import CalledLayer, ModuleCall
from torch_layers.function import TorchFunction, tensors_of
from torch_layers.shared_memory import Trained

Array = Any

# Limits of a graph of several modules: elements that one passes to the next, elements
# of all parameters, and modules. Larger modules hardly gain by sharing a graph, and
# hooks that poll for messages run between graphs.
_MOST_PASSED, _MOST_WEIGHTS, _MOST_MODULES = 2**14, 2**18, 8

# Dtypes of what passes from module to module as it is.
_PASSED = frozenset({torch.float16, torch.float32, torch.float64})


class ChainedLayer(CalledLayer, Protocol):
    """A layer that is called within a chain.

    Attributes:
        is_simple: See :attr:`.TorchLayer.is_simple`.
    """

    is_simple: bool

    def begin_call(self) -> Trained:
        """Shares memory, and returns the parameters that have a gradient."""

    def end_call(self, trained: Trained) -> None:
        """Shares memory that the module has replaced."""


class ChainedFunction(TorchFunction):
    """Calls of the modules of neighbouring layers.

    Its inputs are the parameters of the layers, those of the last layer first, and the
    input of the first layer: the order in which the backward computes gradients.

    Args:
        layers: The layers, each of which passes its result to the next one.
        position (int): Position of the first one in the undivided model.
    """

    #: The catalogue has a row for each class.
    taken_apart = TorchFunction.taken_apart

    def __init__(self, layers: Sequence[ChainedLayer], position: int) -> None:
        self._layers, self._position = layers, position
        self._calls: list[ModuleCall] = []
        # All gradients get memory of their own.
        self._first_owner = 0

    def run(self, x: chainer.Variable, enter: Callable[[int], None]) -> tuple[int, Any]:
        """Calls the modules, up to one that returns something else than one tensor.

        Args:
            x: The input, whose gradient is needed.
            enter: Called with the position of a layer before it runs.

        Returns:
            How many layers have run, and the result of the last one.
        """
        has_graph = chainer.config.enable_backprop
        hooks = [*chainer.get_function_hooks().values()]
        tensor = to_tensor(x.array)
        n_last = len(self._layers) - 1
        parameters: list[Sequence[chainer.Parameter]] = []
        together = _Together()
        for number, layer in enumerate(self._layers):
            enter(self._position + number)
            trained = layer.begin_call()
            parameters.append(trained.parameters)
            begins = not (has_graph and together.takes(layer, trained, tensor))
            if begins:
                if number and has_graph:
                    self._call.keep_graph((tensor,))
                self._call = ModuleCall(layer, trained.tensors)
            else:
                self._call.add(layer, trained.tensors)
            arrays: tuple[Array, ...] = ()
            if hooks:
                arrays = to_array(tensor), *[p.raw_array for p in trained.parameters]
            for hook in hooks:
                hook.forward_preprocess(self, arrays)
            if begins:
                # The same memory, as another tensor without a graph.
                given = (tensor.data,)
                y = self._call.run(None, given, (True,), has_graph, self.collect)
            else:
                y = self._call.go_on(tensor)
            for hook in hooks:
                hook.forward_postprocess(self, arrays)
            if trained.has_buffers:
                layer.end_call(trained)
            if begins and has_graph:
                self._calls.append(self._call)
            if number == n_last or not _is_passed(y, has_graph):
                break
            tensor = y
        outputs = self._arrays_of(y, has_graph, may_have=True)
        inputs = (*itertools.chain.from_iterable(reversed(parameters)), x)
        return number + 1, self.outputs_of(self._connected(inputs, outputs, True))

    def retained(self) -> Iterator[Array]:
        """Yields the arrays that the graphs of PyTorch keep, some twice."""
        for call in self._calls:
            yield from call.retained()

    def gradient_arrays(
        self, indexes: tuple[int, ...], output_gradients: Sequence[Array | None]
    ) -> Iterator[Array | None]:
        """Computes gradients; see :meth:`.TorchFunction.gradient_arrays`.

        Those of a layer are computed when those of the layers behind it have been
        taken, so that they need not all be in memory.

        Args:
            indexes: Positions among the inputs, in ascending order.
            output_gradients: An array for each output; ``None`` where there is none.
        """
        for gradient in self._gradients(indexes, output_gradients):
            yield None if gradient is None else to_array(gradient)

    def _gradients(
        self, indexes: tuple[int, ...], output_gradients: Sequence[Array | None]
    ) -> Iterator[torch.Tensor | None]:
        is_second_half = any([call.is_halfway for call in self._calls])
        gradients = tensors_of(output_gradients)
        # Where the parameters of a layer begin, and the first index that is not before.
        begin = place = 0
        position = self._position + sum([len(call.layers) for call in self._calls])
        for number in range(len(self._calls) - 1, -1, -1):
            call = self._call = self._calls[number]
            # Errors name the layer, or the first one of a graph.
            position -= len(call.layers)
            self.layer_position = position
            end, wanted = begin + len(call.parameters), []
            while place < len(indexes) and indexes[place] < end:
                # The input of the module comes before its parameters.
                wanted.append(1 + indexes[place] - begin)
                place += 1
            own, begin = self.inputs[begin:end], end
            if is_second_half:
                if wanted:
                    yield from call.gradients(wanted, ())
            elif place < len(indexes):
                # Layers before this one need the gradient of its input.
                first, *found = call.gradients((0, *wanted), gradients)
                gradients = (_as_strided(first),)
                yield from found
            else:
                yield from call.gradients(wanted, gradients)
                return
            if number:
                self._observe(own, gradients)
        if not is_second_half:
            yield gradients[0]

    def _observe(
        self, own: Sequence[Any], gradients: Sequence[torch.Tensor | None]
    ) -> None:
        """Calls the hooks that are called between functions, such as one that polls.

        Args:
            own: The parameters of the layer whose backward has run, as nodes.
            gradients: The gradient of the input of that layer.
        """
        hooks = chainer.get_function_hooks()
        if not hooks:
            return
        inputs = tuple([x.data for x in own])
        given = tuple([None if g is None else to_array(g) for g in gradients])
        for hook in hooks.values():
            hook.backward_postprocess(self, inputs, given)
        for hook in hooks.values():
            hook.backward_preprocess(self, inputs, given)


class _Together:
    """Groups neighbouring layers into graphs."""

    def __init__(self) -> None:
        self._is_open = False
        self._n_layers = self._size = 0
        self._tensors: set[int] = set()

    def takes(self, layer: ChainedLayer, trained: Trained, x: torch.Tensor) -> bool:
        """Returns whether the graph of the layer before goes on with a layer.

        Otherwise another graph begins with it. A graph has each parameter once, because
        the gradients of several uses would be added in another order.

        Args:
            layer (TorchLayer): The layer.
            trained: Its parameters.
            x: Its input.
        """
        may = layer.is_simple and x.numel() <= _MOST_PASSED
        tensors = {id(tensor) for tensor in trained.tensors}
        if (
            may
            and self._is_open
            and self._n_layers < _MOST_MODULES
            and self._size + trained.size <= _MOST_WEIGHTS
            and self._tensors.isdisjoint(tensors)
        ):
            self._n_layers += 1
            self._size += trained.size
            self._tensors |= tensors
            return True
        self._is_open = may and trained.size <= _MOST_WEIGHTS
        self._n_layers, self._size, self._tensors = 1, trained.size, tensors
        return False


def _is_passed(y: Any, has_graph: bool) -> bool:
    """Returns whether the result of a module passes to the next one as it is.

    Between functions, tensors of other kinds are converted or have no gradient.
    """
    return (
        type(y) is torch.Tensor
        and y.dtype in _PASSED
        and y.layout is torch.strided
        and y.is_cpu
        and (y.requires_grad or not has_graph)
    )


def _as_strided(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None or gradient.layout is torch.strided:
        return gradient
    return to_tensor(to_array(gradient))
