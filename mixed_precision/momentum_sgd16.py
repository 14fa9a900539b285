"""Momentum SGD for float16 weights that need no float32 master."""

from __future__ import annotations

import math
from typing import Any

import chainer
import numpy as np
from chainer import optimizer
from chainer.optimizers import MomentumSGD


class MomentumSGD16Rule(optimizer.UpdateRule):
    """Update rule of :class:`MomentumSGD16`."""

    is_elementwise = True

    def __init__(self, parent_hyperparam: Any = None) -> None:
        super().__init__(parent_hyperparam)
        #: Factor of ``state['g']``, so that G does not vanish in float16.
        self.scale = 1.0

    #: MixedPrecision keeps no float32 copy of float16 weights with this rule.
    keeps_master = False

    def init_state(self, param: chainer.Parameter) -> None:
        """Starts with G = 0, in the dtype of the weights."""
        with chainer.using_device(param.device):
            self.state["g"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """Updates one parameter.

        ``MixedPrecision`` calls a kernel instead, with a scale that follows the loss
        scale.
        """
        if param.grad is None:
            return
        lr, momentum = self.hyperparam.lr, self.hyperparam.momentum
        # Computed in float32 at least, and rounded once where a result is stored.
        with chainer.using_device(param.device):
            xp = param.device.xp
            compute = np.promote_types(param.dtype, np.float32)
            g, weights = self.state["g"], param.array
            scaled = param.grad * compute.type(self.scale)
            total = compute.type(momentum) * g.astype(compute) + scaled
            if g.dtype == np.float16:
                # G stays finite if gradients are finite; infinite gradients must stay
                # visible.
                largest = float(np.finfo(g.dtype).max)
                saturated = xp.clip(total, -largest, largest)
                total = xp.where(xp.isinf(total), total, saturated)
            g[...] = total
            step = compute.type(lr / self.scale) * g.astype(compute)
            weights[...] = weights.astype(compute) - step

    def scale_for(self, loss_scale: float) -> float:
        """Returns the factor that ``state['g']`` should have under a loss scale.

        G is a sum of 1 / (1 - momentum) gradients, and twice as large for a while when
        the loss scale doubles.
        """
        n_gradients = 1 / max(1e-3, 1 - self.hyperparam.momentum)
        return loss_scale * 2.0 ** -(math.ceil(math.log2(max(1.0, n_gradients))) + 1)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the state."""
        super().serialize(serializer)
        self.scale = float(serializer("scale", self.scale))


class MomentumSGD16(MomentumSGD):
    """Momentum SGD that updates float16 weights without losing small updates.

    Momentum SGD subtracts the learning rate times the gradient from the momentum; in
    float16 the product is often too small to change anything. Here the learning rate
    comes last::

        G(t+1) = m G(t) + dW(t)
        W(t+1) = W(t) - lr G(t+1)

    G is a sum of gradients and does not vanish. For a constant learning rate the
    weights are those of momentum SGD. Weights and G are stored in float16, computed in
    float32 and rounded once; for float32 weights G is float32. Steps of less than half
    the spacing of a weight, some 1/4000 of it, are still lost: with learning rates that
    small, weights need a master.

    With a loss scale, wrap it in :class:`MixedPrecision`::

        MixedPrecision(MomentumSGD16(0.01), loss_scale=1024)

    which scales G as well, by the loss scale times a power of two, so that small
    gradients are not lost in G either.

    Args:
        lr (float): Learning rate.
        momentum (float): Share of G that is kept in each step.

    Example:
        >>> model = chainer.links.Linear(1, 1, nobias=True, initialW=np.float16(1))
        >>> model.W.array = model.W.array.astype(np.float16)
        >>> optimizer = MomentumSGD16(lr=0.25, momentum=0.5).setup(model)
        >>> for _ in range(2):
        ...     model.W.grad = np.ones((1, 1), np.float16)
        ...     optimizer.update()
        >>> model.W.array                           # 1 - 0.25 * 1 - 0.25 * 1.5
        array([[0.375]], dtype=float16)

    See "Modified momentum SGD" in Naruse (2017), Volta Tensor Core training.
    """

    def create_update_rule(self) -> Any:
        """Returns a :class:`MomentumSGD16Rule`."""
        return MomentumSGD16Rule(self.hyperparam)
