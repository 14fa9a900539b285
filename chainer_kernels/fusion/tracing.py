"""Traces chains of layers: runs them once in Chainer, and returns programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.functions.noise.dropout import Dropout
from chainer.functions.normalization.batch_normalization import BatchNormalization
from chainer.links import BatchNormalization as BatchNormalizationLink

from chainer_kernels.fusion import operations
from chainer_kernels.fusion.heads import heads_of
from chainer_kernels.fusion.program import Mask, Program, Step
from chainer_kernels.fusion.side_inputs import NOTHING, SideInputs, call_each


class NotPointwise(Exception):
    """A chain cannot be one loop.

    Attributes:
        layer: Place in the chain of the layer that cannot be fused.
        reason: The reason why that layer cannot be fused.
    """

    def __init__(self, layer: int, reason: str) -> None:
        super().__init__(reason)
        self.layer, self.reason = layer, reason


def trace(
    layers: Sequence[Callable],
    inputs: Sequence[np.ndarray],
    side_inputs: SideInputs = NOTHING,
) -> Program:
    """Runs layers forward and backward, and returns the functions as a program.

    Chainer's backward determines which gradients exist and in which order they are
    added up. The state of the random number generator is restored.

    Args:
        layers: The layers, each called with the output of the previous one.
        inputs: Inputs of the first layer, followed by side inputs of other layers; all
            float32 of one shape.
        side_inputs: Indexes of side inputs in ``inputs``, by the place of their layer.

    Raises:
        NotPointwise: If the layers cannot be one loop; for example, if a function ran
            that is not in the table of operations.
        Exception: If a layer raises it.
    """
    record = _Record()
    variables = [chainer.Variable(x) for x in inputs]
    with _nothing_left_behind(), chainer.force_backprop_mode(), record:
        value = _called(layers, variables, side_inputs, record)
        return _program(record, value, variables)


class Headed(NamedTuple):
    """A chain that begins with a batch normalization.

    Attributes:
        program: The functions that follow. The first input is the normalization's
            output; the others are the chain's inputs without the normalization's.
        link: The batch normalization.
        place: Index of the normalization's input among the inputs of the chain.
    """

    program: Program
    link: BatchNormalizationLink
    place: int


def trace_headed(
    layers: Sequence[Callable],
    inputs: Sequence[np.ndarray],
    side_inputs: SideInputs = NOTHING,
) -> Headed:
    """Traces layers whose first function is a batch normalization.

    Args:
        layers: The layers, each called with the output of the previous one.
        inputs: Inputs of the first layer, followed by side inputs of other layers; all
            float32 of one shape.
        side_inputs: Indexes of side inputs in ``inputs``, by the place of their layer.

    Raises:
        NotPointwise: If another function runs first, or a later function is not in the
            table of operations.
        Exception: If a layer raises it.
    """
    record = _Record()
    variables = [chainer.Variable(x) for x in inputs]
    with _nothing_left_behind(), chainer.force_backprop_mode(), record:
        value = _called(layers, variables, side_inputs, record)
        if not record.functions:
            raise NotPointwise(0, "it calls no function")
        head, layer = record.functions[0], record.layers[0]
        link = next((k for k in heads_of(layers) if _is_of(head, k)), None)
        nodes = [variable.node for variable in variables]
        if link is None or head.inputs[0] not in nodes:
            record.check()
            raise NotPointwise(0, "no batch normalization begins it")
        place = nodes.index(head.inputs[0])
        output = head.outputs[0]()
        variable = None if output is None else record.variable_of(output)
        if variable is None:
            raise NotPointwise(layer, f"nothing follows {head.label}")
        del record.functions[0], record.layers[0], record.inputs[0]
        others = [v for i, v in enumerate(variables) if i != place]
        program = _program(record, value, [variable, *others])
        if program.gradients[0] is None:
            raise NotPointwise(layer, f"{head.label} has no gradient")
        return Headed(
            program._replace(labels=(head.label, *program.labels)), link, place
        )


def _is_head(function: chainer.FunctionNode) -> bool:
    return type(function) is BatchNormalization


def _is_of(function: chainer.FunctionNode, link: BatchNormalizationLink) -> bool:
    """Returns whether a function uses a link's parameters, averages and options."""
    return (
        _is_head(function)
        and function.inputs[1:] == (link.gamma.node, link.beta.node)
        and function.running_mean is link.avg_mean
        and function.running_var is link.avg_var
        and (function.eps, function.decay) == (link.eps, link.decay)
    )


def _called(
    layers: Sequence[Callable],
    inputs: Sequence[chainer.Variable],
    side_inputs: SideInputs,
    record: _Record,
) -> chainer.Variable:
    """Calls the layers, and returns the output of the last one."""

    def check(place: int, value: Any) -> None:
        many = value if isinstance(value, tuple) else (value,)
        strange = [v for v in many if not isinstance(v, chainer.Variable)]
        # Only the last layer must not return several variables.
        if place == len(layers) - 1 and many is value:
            strange = [value]
        if strange:
            name = type(strange[0]).__name__
            raise NotPointwise(place, f"it returns a {name}")

    return call_each(layers, inputs, side_inputs, record.begin, check)


def _program(
    record: _Record, value: chainer.Variable, inputs: Sequence[chainer.Variable]
) -> Program:
    """Runs the backward, and returns the recorded functions as a program."""
    n_forward = len(record.functions)
    record.check()
    gradient = chainer.Variable(np.ones_like(value.array))
    gradients = chainer.grad([value], inputs, [gradient], enable_double_backprop=True)
    return _Numbering(record, n_forward, [*inputs, gradient]).program(value, gradients)


class _Record(chainer.FunctionHook):
    """A record of all functions that run, in their order."""

    name = "chainer_kernels_trace"

    def __init__(self) -> None:
        self.layer = 0
        self.functions: list[chainer.FunctionNode] = []
        self.layers: list[int] = []
        # Input arrays of each function, which may have no other reference.
        self.inputs: list[tuple[np.ndarray, ...]] = []

    def begin(self, layer: int) -> None:
        """Sets the layer whose functions run next."""
        self.layer = layer

    def forward_preprocess(
        self, function: chainer.FunctionNode, in_data: tuple[np.ndarray, ...]
    ) -> None:
        """Records a function."""
        if isinstance(function, Dropout) and function.mask is not None:
            raise NotPointwise(self.layer, "a dropout whose mask is given")
        self.functions.append(function)
        self.layers.append(self.layer)
        self.inputs.append(in_data)

    def variable_of(self, node: Any) -> chainer.Variable | None:
        """Returns the variable of a node that is an input of a recorded function."""
        for function, arrays in zip(self.functions, self.inputs):
            if node in function.inputs:
                if node.data is None:
                    node.data = arrays[function.inputs.index(node)]
                return node.get_variable()
        return None

    def check(self) -> None:
        """Raises an error for functions that cannot be fused.

        Raises:
            NotPointwise: If a function is not in the table of operations, broadcasts,
                or has an input that is not float32.
        """
        for function, layer, arrays in zip(self.functions, self.layers, self.inputs):
            if operations.name_of(function) is None:
                raise NotPointwise(layer, f"{function.label} is not fused")
            if any(a.dtype != np.float32 for a in arrays):
                raise NotPointwise(layer, f"{function.label} is not of float32")
            if any(a.shape != arrays[0].shape for a in arrays):
                raise NotPointwise(layer, f"{function.label} broadcasts")


class _Numbering:
    """Assigns numbers to the values of a record."""

    def __init__(
        self, record: _Record, n_forward: int, leaves: Sequence[chainer.Variable]
    ) -> None:
        self._record = record
        self._n_forward = n_forward
        self._leaves = {variable.node: i for i, variable in enumerate(leaves)}
        self._n_values = len(leaves)
        self._functions: dict[chainer.FunctionNode, int] = {}
        self._arrays = {id(v.array): i for i, v in enumerate(leaves)}
        self._masks: list[Mask] = []
        self._steps: list[Step] = []

    def program(
        self, output: chainer.Variable, gradients: Sequence[chainer.Variable | None]
    ) -> Program:
        record = self._record
        for function, layer, arrays in zip(
            record.functions, record.layers, record.inputs
        ):
            self._add(function, layer, arrays)
        last = record.layers[-1] if record.layers else 0
        n_inputs = len(self._leaves) - 1
        return Program(
            n_inputs,
            tuple(self._masks),
            tuple(self._steps),
            self._value(output.node, last),
            n_inputs,
            tuple(None if g is None else self._value(g.node, last) for g in gradients),
            tuple(f.label for f in record.functions[: self._n_forward]),
        )

    def _add(
        self,
        function: chainer.FunctionNode,
        layer: int,
        inputs: Sequence[np.ndarray],
    ) -> None:
        name = operations.name_of(function)
        numbers = None if name is None else operations.numbers_of(function, name)
        if name is None or numbers is None or function.inputs is None:
            raise NotPointwise(layer, f"{function.label} is not fused")
        if isinstance(function, Dropout):
            mask = self._new()
            self._arrays[id(function.mask)] = mask
            self._masks.append(Mask(mask, layer, function.dropout_ratio))
        operands = tuple(self._value(node, layer) for node in function.inputs)
        self._arrays.update(zip(map(id, inputs), operands))
        row = operations.OPERATIONS[name]
        arrays = [id(getattr(function, each)) for each in row.arrays]
        if not all(each in self._arrays for each in arrays):
            raise NotPointwise(layer, f"{function.label} has an array of its own")
        self._functions[function] = self._n_values
        for output in range(len(row.expressions)):
            places = tuple(self._arrays[each] for each in arrays)
            step = Step(self._new(), name, operands, places, numbers, output)
            self._steps.append(step)
        # Outputs that a gradient may have as an attribute.
        indexes = function._output_indexes_to_retain or ()
        for index, array in zip(indexes, function._retained_output_data or ()):
            self._arrays[id(array)] = self._functions[function] + index

    def _new(self) -> int:
        self._n_values += 1
        return self._n_values - 1

    def _value(self, node: Any, layer: int) -> int:
        """Returns the number of a variable."""
        if node in self._leaves:
            return self._leaves[node]
        creator = node.creator_node
        if creator not in self._functions:
            raise NotPointwise(layer, "it takes an array that is not among its inputs")
        index = next(i for i, y in enumerate(creator.outputs) if y() is node)
        return self._functions[creator] + index


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Restores the random state after a block, and silences NumPy's warnings in it."""
    state = np.random.get_state(legacy=False)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        np.random.set_state(state)
