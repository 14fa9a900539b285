"""A chain of pointwise functions as a list of numbered values.

::

    x + a * sigmoid(b)                       its gradients

    0   x     1   a     2   b                3   gy
    4   sigmoid(2)                           7   gy * 4       of a
    5   1 * 4                                8   gy * 1
    6   0 + 5            the output          9   sigmoid_grad(4, 8)   of b
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from chainer_kernels.fusion.operations import OPERATIONS, leading


class Step(NamedTuple):
    """One value that is computed.

    Attributes:
        value: Number of the value.
        operation: Key of the function in
            :data:`~chainer_kernels.fusion.operations.OPERATIONS`.
        operands: Numbers of the values that are inputs of the function.
        arrays: Numbers of the values that are attributes of the function.
        numbers: Attributes of the function that are plain numbers.
        output: Index of the value among the outputs of the function.
    """

    value: int
    operation: str
    operands: tuple[int, ...]
    arrays: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    output: int = 0


class Mask(NamedTuple):
    """The mask that a dropout draws.

    Attributes:
        value: Number of the mask as a value.
        layer: Place of the dropout layer in the chain.
        ratio: Fraction of elements that is dropped.
    """

    value: int
    layer: int
    ratio: float


class Program(NamedTuple):
    """The values of a chain, forward and backward.

    Attributes:
        n_inputs: Number of inputs, which are the first values.
        masks: Masks of dropouts, in the order in which they are drawn.
        steps: All computed values, each after the values that it needs.
        output: Number of the value that the chain returns.
        gradient: Number of the value that is the output's gradient.
        gradients: Number of the gradient of each input; ``None`` for an input without
            a gradient.
        labels: Names of the functions that run forward, for display.
    """

    n_inputs: int
    masks: tuple[Mask, ...]
    steps: tuple[Step, ...]
    output: int
    gradient: int
    gradients: tuple[int | None, ...]
    labels: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether the program equals functions run one by one, bit for bit."""
        return all(OPERATIONS[step.operation].is_exact for step in self.steps)

    @property
    def n_arrays(self) -> int:
        """How many arrays the functions read and write if they run one by one."""
        return sum(len(s.operands) + len(s.arrays) + 1 for s in self.steps)

    @property
    def adds_up_inputs(self) -> bool:
        """Whether an input is used several times, so that its gradients are added."""
        steps, _ = self.needed([self.output])
        uses = [v for step in steps for v in step.operands if v < self.n_inputs]
        return len(uses) > len(set(uses))

    @property
    def by_value(self) -> dict[int, Step]:
        """The steps by the numbers of their values."""
        return {step.value: step for step in self.steps}

    def needed(
        self, values: Iterable[int | None], given: Sequence[int] = ()
    ) -> tuple[list[Step], list[int]]:
        """Returns the steps that compute some values, and the values that they read.

        Args:
            values: Numbers of the values to compute; ``None`` is skipped.
            given: Numbers of known values, besides inputs, masks and the gradient.

        Returns:
            The steps, and the numbers of values that they read but do not compute.
        """
        by_value, needed = self.by_value, set()
        waiting = [value for value in values if value is not None]
        while waiting:
            value = waiting.pop()
            if value not in needed:
                needed.add(value)
                if value in by_value and value not in given:
                    step = by_value[value]
                    waiting += [*step.operands, *step.arrays]
        steps = [s for s in self.steps if s.value in needed and s.value not in given]
        computed = {step.value for step in steps}
        return steps, sorted(needed - computed)

    def memory_order(
        self, value: int, known: Mapping[int, tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Returns the memory order that functions run one by one give a value.

        Args:
            value: Number of the value.
            known: Memory orders by the numbers of their values. ``value`` is among them
                or is computed from them.
        """
        if value in known:
            return known[value]
        step = self.by_value[value]
        found = {
            self.memory_order(each, known)
            for each in leading(step.operation, step.operands, step.arrays)
        }
        (order, *others) = found
        return tuple(range(len(order))) if others else order


class Directions(NamedTuple):
    """The gradients that a program's backward computes, and the values held for it.

    Attributes:
        keeps_output: Whether the output is held, and no inputs.
        inputs: Indexes of the inputs that are held.
        gradients: Numbers of the gradients to compute. A gradient that equals the
            output's gradient is not among them.
    """

    keeps_output: bool
    inputs: tuple[int, ...]
    gradients: tuple[int, ...]


def directions(program: Program) -> Directions:
    """Chooses the values that are held for the backward.

    The output is held if the backward then needs no inputs, as for ``relu(a + b)``.
    Otherwise inputs are held, and the backward computes values in between again.
    """
    gradients = tuple(
        dict.fromkeys(
            value
            for value in program.gradients
            if value is not None and value != program.gradient
        )
    )
    inputs = range(program.n_inputs)
    _, with_output = program.needed(gradients, [program.output])
    if program.output in with_output and not set(with_output) & set(inputs):
        return Directions(True, (), gradients)
    _, leaves = program.needed(gradients)
    return Directions(False, tuple(sorted(set(leaves) & set(inputs))), gradients)
