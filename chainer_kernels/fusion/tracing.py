"""Chains of layers, run once in Chainer, as programs."""

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
from chainer_kernels.fusion.asides import NOTHING, Asides, call_each
from chainer_kernels.fusion.heads import heads_of
from chainer_kernels.fusion.program import Mask, Program, Step


class NotPointwise(Exception):
    """A chain cannot be one loop.

    Attributes:
        layer: Which of its layers is why, counted within the chain.
        reason: What is the matter with it.
    """

    def __init__(self, layer: int, reason: str) -> None:
        super().__init__(reason)
        self.layer, self.reason = layer, reason


def trace(
    layers: Sequence[Callable],
    inputs: Sequence[np.ndarray],
    asides: Asides = NOTHING,
) -> Program:
    """Runs layers forward and backward, and returns what they computed.

    Chainer's own backward says which gradients there are and in which order they are
    added up. Random numbers that are drawn are given back.

    Args:
        layers: Each is called with what the one before returned.
        inputs: Of the first one, and what others take from aside: of float32 and one
            shape.
        asides: Which layers those are.

    Raises:
        NotPointwise: If something else than functions of the table was computed.
        Exception: What a layer raises.
    """
    record = _Record()
    variables = [chainer.Variable(x) for x in inputs]
    with _nothing_left_behind(), chainer.force_backprop_mode(), record:
        value = _called(layers, variables, asides, record)
        return _program(record, value, variables)


class Headed(NamedTuple):
    """A chain that begins with a batch normalization.

    Attributes:
        program: What follows it, whose first input is what it returns. The others are
            the chain's, without that which it takes.
        link: The batch normalization.
        place: Which input of the chain it takes.
    """

    program: Program
    link: BatchNormalizationLink
    place: int


def trace_headed(
    layers: Sequence[Callable],
    inputs: Sequence[np.ndarray],
    asides: Asides = NOTHING,
) -> Headed:
    """Traces layers, the first function of which is a batch normalization.

    Args:
        layers: As those of :func:`trace`.
        inputs: Likewise.
        asides: Likewise.

    Raises:
        NotPointwise: If they do not begin so, or something follows that is not in the
            table.
        Exception: What a layer raises.
    """
    record = _Record()
    variables = [chainer.Variable(x) for x in inputs]
    with _nothing_left_behind(), chainer.force_backprop_mode(), record:
        value = _called(layers, variables, asides, record)
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
    """Returns whether a function was called by a link, with all that this has."""
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
    asides: Asides,
    record: _Record,
) -> chainer.Variable:
    """Returns what the last layer returns."""

    def check(place: int, value: Any) -> None:
        many = value if isinstance(value, tuple) else (value,)
        strange = [v for v in many if not isinstance(v, chainer.Variable)]
        # A layer may give several to the next one.
        if place == len(layers) - 1 and many is value:
            strange = [value]
        if strange:
            name = type(strange[0]).__name__
            raise NotPointwise(place, f"it returns a {name}")

    return call_each(layers, inputs, asides, record.begin, check)


def _program(
    record: _Record, value: chainer.Variable, inputs: Sequence[chainer.Variable]
) -> Program:
    """Returns what was computed from some variables on."""
    n_forward = len(record.functions)
    record.check()
    gradient = chainer.Variable(np.ones_like(value.array))
    gradients = chainer.grad([value], inputs, [gradient], enable_double_backprop=True)
    return _Numbering(record, n_forward, [*inputs, gradient]).program(value, gradients)


class _Record(chainer.FunctionHook):
    """All functions that run, in their order."""

    name = "chainer_kernels_trace"

    def __init__(self) -> None:
        self.layer = 0
        self.functions: list[chainer.FunctionNode] = []
        self.layers: list[int] = []
        # Beside each function its inputs, which nobody else may hold any more.
        self.inputs: list[tuple[np.ndarray, ...]] = []

    def begin(self, layer: int) -> None:
        """Says that what follows is called by a layer."""
        self.layer = layer

    def forward_preprocess(
        self, function: chainer.FunctionNode, in_data: tuple[np.ndarray, ...]
    ) -> None:
        """Notes a function."""
        if isinstance(function, Dropout) and function.mask is not None:
            raise NotPointwise(self.layer, "a dropout whose mask is given")
        self.functions.append(function)
        self.layers.append(self.layer)
        self.inputs.append(in_data)

    def variable_of(self, node: Any) -> chainer.Variable | None:
        """Returns the variable of a node that a function has taken."""
        for function, arrays in zip(self.functions, self.inputs):
            if node in function.inputs:
                if node.data is None:
                    node.data = arrays[function.inputs.index(node)]
                return node.get_variable()
        return None

    def check(self) -> None:
        """Refuses functions that are not in the table, and what broadcasts."""
        for function, layer, arrays in zip(self.functions, self.layers, self.inputs):
            if operations.name_of(function) is None:
                raise NotPointwise(layer, f"{function.label} is not fused")
            if any(a.dtype != np.float32 for a in arrays):
                raise NotPointwise(layer, f"{function.label} is not of float32")
            if any(a.shape != arrays[0].shape for a in arrays):
                raise NotPointwise(layer, f"{function.label} broadcasts")


class _Numbering:
    """Numbers for what a record computed."""

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
        # What a gradient has as an attribute.
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
            raise NotPointwise(layer, "it takes an array that is none of its inputs")
        index = next(i for i, y in enumerate(creator.outputs) if y() is node)
        return self._functions[creator] + index


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Gives random numbers back, and leaves warnings to calls that count."""
    state = np.random.get_state(legacy=False)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        np.random.set_state(state)
