"""Updates of parameters, each in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from chainer.optimizers.msvag import MSVAGRule

from chainer_kernels import optimizer_loops_cpu
from chainer_kernels.chainer_rules import CALLS
from chainer_kernels.formulas import state_names
from chainer_kernels.layouts import are_float32, memory_order

#: The fewest elements for a loop: below them the calls cost more than the arithmetic.
SMALLEST = 1 << 14


def update(rule: Any, param: Any) -> None:
    """Stands for ``update_core_cpu`` of Chainer's rules.

    Weights and states are the same as Chainer's bit for bit.
    """
    weight, gradient = param.array, param.grad
    # Without dimensions NumPy may compute in float64, which are left out as well.
    if gradient is None or weight.size < SMALLEST:
        return NotImplemented
    formula, given = CALLS[type(rule)](rule)
    numbers = _in_float32(given)
    states = [(rule.state or {}).get(name) for name in state_names(formula)]
    order = memory_order(weight)
    if not (numbers and order and are_float32(weight, gradient, *states)):
        return NotImplemented
    weight, gradient, *states = (
        a if len(order) == 1 else a.transpose(order)
        for a in (weight, gradient, *states)
    )
    # Gradients alone may be copied, or read-only.
    if not weight.flags.writeable or not all(
        s.flags.c_contiguous and s.flags.writeable and s.shape == weight.shape
        for s in states
    ):
        return NotImplemented
    arrays = [np.ascontiguousarray(a).reshape(-1) for a in (weight, gradient, *states)]
    optimizer_loops_cpu.update_arrays(formula, arrays, numbers)
    if isinstance(rule, MSVAGRule):
        rule.beta_power *= rule.hyperparam.beta


def _in_float32(numbers: Sequence[Any]) -> list[np.float32]:
    """Returns numbers in float32, as NumPy computes with them beside float32 arrays.

    The list is empty where NumPy may differ: it computes in float64 with a number of
    type ``numpy.float64``, and Chainer refuses an epsilon that vanishes in float32.
    """
    found = [*map(np.float32, numbers)]
    is_same = all(
        type(number) in (float, int) and bool(number) == bool(in_float32)
        for number, in_float32 in zip(numbers, found)
    )
    return found if is_same else []
