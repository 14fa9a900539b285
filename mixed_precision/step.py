"""One step of an optimizer: from scaled gradients to weights, with the hooks between.

::

    hooks that clip by the norm, or none      other hooks, and rules without a kernel
        |                                         |
        |                                     unscale, into float32 beside the masters
        |  their rates are factors            hooks before the update
    unscale, update, round: one pass          update
                                              hooks after it
                                              round
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chainer
import numpy as np

from divisible.optimizer_hooks import Hooks, clipping_rate, is_clipping
from mixed_precision import fused
from mixed_precision.flat import FlatBuffers, Gathered


class Step:
    """The gradients of one step, from the sums of squares to the update.

    Args:
        optimizer (chainer.Optimizer): Optimizer whose hooks and update rules are used.
        parameters: The optimizer's initialized parameters, in the order in which hooks
            get them.
        buffers: Buffers that hold the parameters.
        loss_scale (float): Factor that the gradients were multiplied by.
        norm_of: Returns the squared norm of all ranks' gradients for the sums of
            squares of this rank's gradients. A call of all ranks.
    """

    def __init__(
        self,
        optimizer: chainer.Optimizer,
        parameters: Sequence[chainer.Parameter],
        buffers: FlatBuffers,
        loss_scale: float,
        norm_of: Callable[[np.ndarray], float],
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._buffers, self._norm_of = buffers, norm_of
        self._scale, self._inverse = loss_scale, 1 / loss_scale
        self._gathered: Sequence[Gathered] = buffers.gather()

    def sum_squares(self) -> np.ndarray:
        """Returns the sums of squares of this rank's unscaled gradients, float64."""
        return self._buffers.sum_squares(self._gathered, self._inverse)

    def take(self, squared_norm: float) -> None:
        """Calls the hooks, and updates the parameters.

        Args:
            squared_norm: Squared norm of all ranks' unscaled gradients.
        """
        self._buffers.streamed.begin()
        hooks = Hooks.of(self._optimizer)
        runs, others = fused.plan(self._buffers.groups)
        in_float32 = (
            bool(others)
            or any(run.has_hooks for run in runs)
            or hooks.look_at_parameters
        )
        if in_float32:
            with self._buffers.in_float32(self._gathered, self._inverse) as gathered:
                self._gathered, self._inverse = gathered, 1.0
                self._call_before(hooks.before, squared_norm)
                self._update(runs, in_float32=True)
                for param in others:
                    param.update()
                for hook in hooks.after:
                    self._call(hook)
        else:
            for hook in hooks.before:
                rate = clipping_rate(hook, squared_norm)
                self._inverse *= rate
                squared_norm *= rate**2
            self._update(runs, in_float32=False)
        self._buffers.streamed.end()

    def _call_before(self, hooks: Sequence[Any], squared_norm: float) -> None:
        changed = False
        for hook in hooks:
            if not is_clipping(hook):
                self._call(hook)
                changed = True
                continue
            if changed:
                # Another all-reduce, which does not happen where clipping comes first.
                # The hooks alone decide whether there is one, and they are the same on
                # all ranks.
                squared_norm = self._norm_of(self.sum_squares())
                changed = False
            rate = clipping_rate(hook, squared_norm)
            squared_norm *= rate**2
            if rate < 1:
                self._buffers.clip(rate)

    def _call(self, hook: Any) -> None:
        if getattr(hook, "call_for_each_param", False):
            for param in self._parameters:
                hook(param.update_rule, param)
        else:
            hook(self._optimizer)
        self._buffers.collect()

    def _update(self, runs: Sequence[fused.Run], in_float32: bool) -> None:
        self._optimizer.t += 1
        self._count_without_arrays()
        groups = self._buffers.groups
        for run in runs:
            gradients = self._gathered[groups.index(run.group)]
            fused.update(run, gradients, self._inverse, self._scale, in_float32)
        self._buffers.streamed.update(self._inverse)

    def _count_without_arrays(self) -> None:
        """Counts the update for parameters that have no array so far, as Chainer does.

        Adam's corrections depend on the count when such a parameter gets its array.
        """
        params = self._optimizer.target.params()
        for rule in {p.update_rule for p in params if not p.is_initialized}:
            if rule is not None and rule.enabled:
                rule.t += 1
