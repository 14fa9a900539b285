"""A call of a module of PyTorch, as a function in Chainer's graph.

::

    Chainer    x, weight, bias --> TorchFunction --> y         arrays
                    |                              ^
    PyTorch    leaf for x -----> graph of module --|           the same memory

Between two such functions only arrays pass, so each call has a small graph of PyTorch
of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import chainer
import torch

from chainer_kernels.catalogue import Backward
from chainer_kernels.hooks import are_minding
from divisible.running_averages import AveragingFunction
from torch_layers.arrays import address_of, to_array, to_tensor
from torch_layers.call import CalledLayer, ModuleCall, is_continuous
from torch_layers.halves import Gradients
from torch_layers.structures import Slot, with_leaves, without_leaves

Array = Any

# Chainer's constructor, without checks of the arguments.
_unchecked = chainer.Variable._init_unchecked
# The structure of a single tensor.
_ONE = Slot(0)


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

    # The call that runs, or ran last.
    _call: ModuleCall

    def __init__(
        self,
        layer: CalledLayer,
        structure: Any,
        needed: Sequence[bool],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self._call = ModuleCall(layer, parameters)
        self._structure, self._needed = structure, needed
        # Gradients from this index on get memory of their own.
        self._first_owner = len(needed)

    @property
    def label(self) -> str:
        """The name of the function, for hooks and errors."""
        return self._call.label

    def has_averages(self) -> bool:
        """Returns whether the module has batch normalization with running averages."""
        return any([layer.norms for layer in self._call.layers])

    def apply(self, inputs: tuple[Any, ...]) -> tuple[chainer.Variable, ...]:
        """Computes the outputs; see :meth:`chainer.FunctionNode.apply`.

        Unless a hook observes each function, the checks that a module makes itself are
        left out: they take longer than a small module.

        Args:
            inputs: The leaves, then the parameters of the link.
        """
        hooks = chainer.get_function_hooks()
        if chainer.config.debug or (hooks and are_minding(hooks)):
            return super().apply(inputs)
        n_leaves = len(self._needed)
        variables = [chainer.as_variable(x) for x in inputs[:n_leaves]]
        arrays = tuple([x.raw_array for x in variables])
        parameters = inputs[n_leaves:]
        if hooks:
            arrays += tuple([param.raw_array for param in parameters])
        for hook in hooks.values():
            hook.forward_preprocess(self, arrays)
        outputs = self.forward(arrays)
        for hook in hooks.values():
            hook.forward_postprocess(self, arrays)
        needs_gradient = True in self._needed or bool(parameters)
        return self._connected((*variables, *parameters), outputs, needs_gradient)

    def _connected(
        self,
        inputs: Sequence[chainer.Variable],
        outputs: Sequence[Array],
        needs_gradient: bool,
    ) -> tuple[chainer.Variable, ...]:
        """Returns the outputs as variables, and puts the function into the graph."""
        found = [_unchecked(data=y, requires_grad=needs_gradient) for y in outputs]
        self._input_layouts = (None,) * len(inputs)
        self._output_layouts = (None,) * len(outputs)
        self._output_count = len(outputs)
        if chainer.config.enable_backprop:
            # Parameters have rank 0.
            self.rank = max([x.rank for x in inputs], default=0)
            nodes = [y.node for y in found]
            for node in nodes:
                node.creator_node = self
            self.inputs = tuple([x.node for x in inputs])
            self.outputs = tuple(map(weakref.ref, nodes))
            self.lazy_grad_sum = chainer.config.lazy_grad_sum
        return tuple(found)

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Calls the module.

        Args:
            arrays: The arrays of the leaves. Those of the parameters may follow.
        """
        has_graph = chainer.config.enable_backprop
        leaves = [to_tensor(array) for array, _ in zip(arrays, self._needed)]
        call = self._call
        y = call.run(self._structure, leaves, self._needed, has_graph, self.collect)
        # The graph of a forward that runs again has the same outputs.
        may_have = has_graph or any(self._needed) or bool(call.parameters)
        return self._arrays_of(y, has_graph, may_have)

    def traced_outputs(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns the outputs of a call without arithmetic, for what is traced.

        Args:
            arrays: Arrays without numbers for the leaves. Those of the parameters may
                follow.
        """
        # A run does not load what only a prediction of memory needs.
        from torch_layers.shape_call import ShapeCall

        call = self._call = ShapeCall(self._call.layers[0], self.label)
        y = call.run(self._structure, arrays[: len(self._needed)], self._needed)
        return self._arrays_of(y, True, True, call.as_array)

    def _arrays_of(
        self,
        y: Any,
        has_graph: bool,
        may_have: bool,
        as_array: Callable[[torch.Tensor], Array] = to_array,
    ) -> tuple[Array, ...]:
        """Takes the result of the module apart, and keeps the graph behind it.

        Args:
            y: The result.
            has_graph: Whether there is a backward.
            may_have: Whether outputs may have a gradient.
            as_array: Returns a tensor as an array.

        Returns:
            The arrays of the outputs that have a gradient.
        """
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
        for i, tensor in enumerate(tensors):
            if may_have and (
                tensor.requires_grad if has_graph else is_continuous(tensor)
            ):
                self._numbers.append(i)
                outputs.append(tensor)
            else:
                self._others[i] = as_array(tensor)
        if has_graph:
            self._call.keep_graph(outputs)
        return tuple([as_array(tensor) for tensor in outputs])

    def retained(self) -> Iterator[Array]:
        """Yields the arrays that the graph of PyTorch keeps, some twice."""
        yield from self._call.retained()

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
        # Hooks change the gradients of parameters in place, so each gets memory of its
        # own. Parameters that a module only adds would share the output's gradient.
        seen = {address_of(array) for array in given if array is not None}
        arrays = []
        for i, gradient in zip(indexes, self._gradients(indexes, given)):
            array = None if gradient is None else to_array(gradient)
            if gradient is not None and gradient.layout is torch.strided:
                memory = gradient.untyped_storage().data_ptr()
                if i >= self._first_owner and (memory in seen or 0 in array.strides):
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
    ) -> Iterable[Array | None]:
        """Computes the gradients of some leaves and parameters.

        If those of leaves are asked for alone, the others come in another call; see
        :meth:`.ModuleCall.gradients`.

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
    ) -> Iterable[torch.Tensor | None]:
        """Computes the gradients of some leaves and parameters, as tensors."""
        return self._call.gradients(indexes, tensors_of(output_gradients))


def tensors_of(arrays: Sequence[Array | None]) -> Gradients:
    """Returns gradients as tensors.

    PyTorch's engine rounds a gradient of another dtype than its output.
    """
    return [None if array is None else to_tensor(array) for array in arrays]
