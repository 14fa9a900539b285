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
        value: Its number.
        operation: A row of :data:`~chainer_kernels.fusion.operations.OPERATIONS`.
        operands: The numbers of the values that the function is called with.
        arrays: Those that are attributes of the function.
        numbers: The numbers that are attributes.
        output: Which output of the function it is.
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
        value: Its number.
        layer: The layer that draws it, counted within the chain.
        ratio: How much is dropped.
    """

    value: int
    layer: int
    ratio: float


class Program(NamedTuple):
    """A chain, forward and backward.

    Attributes:
        n_inputs: How many inputs there are: the first values.
        masks: What is drawn, in that order.
        steps: All that is computed, each after what it needs.
        output: The value that the chain returns.
        gradient: The value that stands for the output's gradient.
        gradients: For each input the value that is its gradient; ``None`` for none.
        labels: Names of the functions that run forward, for people.
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
        """Whether it equals the functions one by one, bit for bit."""
        return all(OPERATIONS[step.operation].is_exact for step in self.steps)

    @property
    def adds_up_inputs(self) -> bool:
        """Whether an input is used several times, so that its gradients are added."""
        steps, _ = self.needed([self.output])
        uses = [v for step in steps for v in step.operands if v < self.n_inputs]
        return len(uses) > len(set(uses))

    @property
    def by_value(self) -> dict[int, Step]:
        """The steps by the values they compute."""
        return {step.value: step for step in self.steps}

    def needed(
        self, values: Iterable[int | None], given: Sequence[int] = ()
    ) -> tuple[list[Step], list[int]]:
        """Returns the steps that compute some values, and the values they begin with.

        Args:
            values: Those that are asked for.
            given: Those that are known, besides inputs, masks and the gradient.
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
        """Returns the memory order that a value has where functions run one by one.

        Args:
            value: One of at least one that is known.
            known: The orders of some values.
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
    """The results of the two loops of a program, and the values held between them.

    Attributes:
        keeps_output: Whether the backward needs the output, and then no inputs.
        inputs: Which inputs it needs.
        gradients: The values of the gradients that it computes: not those that are the
            output's gradient as it is.
    """

    keeps_output: bool
    inputs: tuple[int, ...]
    gradients: tuple[int, ...]


def directions(program: Program) -> Directions:
    """Chooses what the backward begins with.

    It begins with the output where it needs no inputs then, as after ``relu(a + b)``,
    and otherwise computes again what lies between.
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
