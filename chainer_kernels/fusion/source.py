"""The two loops of a program, written in Numba's Python.

For ``relu(a + b)`` they are::

    def forward(x0, x1, y):                 def backward(y, gy, g0):
        for i in range(x0.size):                for i in range(y.size):
            v0 = x0[i]                              v4 = y[i]
            v1 = x1[i]                              v2 = gy[i]
            v3 = v0 + v1                            v5 = relu_grad(v4, v2)
            v4 = relu(v3)                           g0[i] = v5
            y[i] = v4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainer_kernels.fusion.operations import OPERATIONS, SCALARS
from chainer_kernels.fusion.program import Directions, Program, Step

#: Largest number of pairs of arrays that Numba's vectorizer checks for overlap before a
#: loop. A loop with more pairs is not vectorized.
_MOST_PAIRS = 8


class Source(NamedTuple):
    """A loop.

    Attributes:
        name: Name of the function.
        reads: Numbers of the values to read, in the order of the first arguments.
        writes: Numbers of the values to write, in the order of the other arguments.
        lines: Source lines of the function.
        signature: Types of the arguments, as Numba writes them.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    lines: tuple[str, ...]
    signature: str


def forward(program: Program) -> Source:
    """Returns the loop that computes the output."""
    steps, leaves = program.needed([program.output])
    return _source("forward", steps, leaves, [program.output])


def backward(program: Program, chosen: Directions) -> list[Source]:
    """Returns loops that compute gradients: one for all if it can be vectorized."""
    given = [program.output] if chosen.keeps_output else []
    gradients = list(chosen.gradients)
    _, leaves = program.needed(gradients, given)
    n = len(gradients)
    if n * len(leaves) + n * (n - 1) // 2 <= _MOST_PAIRS:
        groups = [gradients] if gradients else []
    else:
        groups = [[each] for each in gradients]
    sources = []
    for number, group in enumerate(groups):
        steps, leaves = program.needed(group, given)
        sources.append(_source(f"backward_{number}", steps, leaves, group))
    return sources


def module(sources: Sequence[Source]) -> str:
    """Returns the text of a module with some loops."""
    imports = [
        "from math import sqrt",
        "import numpy as np",
        *(
            f"from chainer_kernels.loops.{place} import {name}"
            for name, place in SCALARS.items()
        ),
        "F = np.float32",
    ]
    return "\n".join([*imports, *(line for s in sources for line in s.lines), ""])


def _source(
    name: str, steps: Sequence[Step], reads: Sequence[int], writes: Sequence[int]
) -> Source:
    arguments = [*(f"a{v}" for v in reads), *(f"out{v}" for v in writes)]
    lines = [
        f"def {name}({', '.join(arguments)}):",
        f"    for i in range({arguments[0]}.size):",
        *(f"        v{v} = a{v}[i]" for v in reads),
        *(f"        v{step.value} = {expression(step)}" for step in steps),
        *(f"        out{v}[i] = v{v}" for v in writes),
    ]
    signature = f"void({', '.join(['f4[::1]'] * len(arguments))})"
    return Source(name, tuple(reads), tuple(writes), tuple(lines), signature)


def expression(step: Step) -> str:
    """Returns the expression of a step, in Numba's Python."""
    row = OPERATIONS[step.operation]
    names = {name: f"F({number!r})" for name, number in zip(row.numbers, step.numbers)}
    names.update((name, f"v{value}") for name, value in zip(row.arrays, step.arrays))
    operands = [f"v{value}" for value in step.operands]
    return row.expressions[step.output].format(*operands, **names)
