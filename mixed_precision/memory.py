"""The memory that the update of a parameter needs, for planning."""

from __future__ import annotations

import chainer
import numpy as np

from divisible.rule_state import rule_state_bytes
from mixed_precision import fused


def update_bytes(
    rule: chainer.UpdateRule, param: chainer.Parameter, is_looked_at: bool
) -> int:
    """Returns the bytes that updates hold besides a parameter and its gradient.

    Args:
        rule (chainer.UpdateRule): Update rule without state or hooks.
        param (chainer.Parameter): Initialized parameter, which is not changed.
        is_looked_at (bool): Whether hooks read or change parameters.
    """
    is_half = param.dtype == np.float16
    in_float32 = param.size * 4 if is_half else param.array.nbytes
    total = 0
    state_of = param
    if is_half and getattr(rule, "keeps_master", True):
        total += in_float32
        with chainer.using_device(param.device):
            state_of = chainer.Parameter(param.array.astype(np.float32))
    total += rule_state_bytes(rule, state_of)
    if is_looked_at or not fused.has_kernel(rule):
        total += in_float32
        if is_half and state_of is param:
            # Hooks need a float32 copy, as there is no master.
            total += in_float32
    return total
