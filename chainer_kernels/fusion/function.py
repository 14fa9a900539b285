"""A chain of pointwise functions as one function of Chainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from chainer_kernels import threads
from chainer_kernels.fusion import operations
from chainer_kernels.fusion.generated import Compiled
from chainer_kernels.fusion.program import Program
from chainer_kernels.layouts import empty_like, flat, in_memory_order, memory_order

Array = Any


class FusedFunction(chainer.FunctionNode):
    """Computes a program in one loop, and its gradients in another.

    Values between inputs and output are not held: the backward computes them again.

    Args:
        compiled: The program and its loops.
        masks: An array for each mask of the program.
    """

    def __init__(self, compiled: Compiled, masks: Sequence[np.ndarray] = ()) -> None:
        self._compiled = compiled
        drawn = compiled.program.masks
        self._masks = {m.value: mask for m, mask in zip(drawn, masks)}

    @property
    def label(self) -> str:
        """The names of the functions, for display."""
        return " > ".join(self._compiled.program.labels)

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the output, in the memory order of the inputs."""
        chosen = self._compiled.directions
        self.retain_inputs(chosen.inputs)
        if chosen.keeps_output:
            self.retain_outputs((0,))
        source, loop = self._compiled.forward
        given = {**dict(enumerate(inputs)), **self._masks}
        y = empty_like(inputs[0])
        threads.run_slices(loop, flat([*(given[v] for v in source.reads), y]))
        return (y,)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes the gradients of some inputs."""
        program = self._compiled.program
        given = self._retained()
        given[program.gradient] = grad_outputs[0]
        wanted = [program.gradients[i] for i in indexes]
        if chainer.config.enable_backprop:
            found = differentiable(program, self._masks, given, wanted)
        else:
            found = self._computed(given, wanted)
        return tuple(None if value is None else found[value] for value in wanted)

    def _retained(self) -> dict[int, chainer.Variable]:
        """Returns the variables held for backward, by the numbers of their values."""
        chosen = self._compiled.directions
        given = dict(zip(chosen.inputs, self.get_retained_inputs()))
        if chosen.keeps_output:
            (given[self._compiled.program.output],) = self.get_retained_outputs()
        return given

    def _computed(
        self, given: dict[int, chainer.Variable], wanted: Sequence[int | None]
    ) -> dict[int, chainer.Variable]:
        """Returns gradients that loops compute, by the numbers of their values."""
        arrays = {value: variable.array for value, variable in given.items()}
        arrays.update(self._masks)
        found = dict(given)
        for source, loop in self._compiled.backward:
            if not set(source.writes) & set(wanted):
                continue
            reads = [arrays[v] for v in source.reads]
            writes = [empty_like(reads[0]) for _ in source.writes]
            threads.run_slices(loop, flat([*reads, *writes]))
            computed = dict(zip(source.writes, writes))
            computed = as_one_by_one(self._compiled.program, arrays, computed)
            found.update((v, chainer.as_variable(a)) for v, a in computed.items())
        return found


def as_one_by_one(
    program: Program,
    given: Mapping[int, np.ndarray],
    computed: Mapping[int, np.ndarray],
) -> Mapping[int, np.ndarray]:
    """Returns values in the memory order that functions run one by one would give them.

    A later sum adds elements in the order of memory, so rounding depends on that order.

    Args:
        program: The program that computes the values.
        given: Arrays from which the values were computed, by their numbers.
        computed: The values, by their numbers.
    """
    orders = {value: memory_order(array) for value, array in given.items()}
    if len(set(orders.values())) == 1:
        return computed
    return {
        value: in_memory_order(array, program.memory_order(value, orders))
        for value, array in computed.items()
    }


def differentiable(
    program: Program,
    masks: Mapping[int, np.ndarray],
    given: Mapping[int, chainer.Variable],
    wanted: Sequence[int | None],
) -> dict[int, chainer.Variable]:
    """Computes values with Chainer's functions, which can be differentiated again.

    Args:
        program: The program that computes the values.
        masks: The masks of the program, by their numbers.
        given: Known values, by their numbers.
        wanted: Numbers of the values to compute; ``None`` is skipped.

    Returns:
        The values by their numbers.
    """
    found = dict(given)
    steps, _ = program.needed(wanted, list(given))
    for step in steps:
        if step.value in found:
            continue
        arrays = [masks[v] if v in masks else found[v].array for v in step.arrays]
        function = operations.made(step.operation, step.numbers, arrays)
        outputs = function.apply(tuple(found[v] for v in step.operands))
        first = step.value - step.output
        found.update(enumerate(outputs, first))
    return found
