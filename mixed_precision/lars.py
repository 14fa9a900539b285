"""Layer-wise adaptive rate scaling (LARS)."""

from __future__ import annotations

from typing import Any

import chainer
from chainer import optimizer
from chainer.optimizers.momentum_sgd import MomentumSGD, MomentumSGDRule

from divisible.optimizer_hooks import named_hooks


def layer_rate(
    param: chainer.Parameter, eta: float, weight_decay: float, loss_scale: float = 1.0
) -> Any:
    """Returns ``eta * |w| / (|g| + weight_decay * |w|)``; 1 if a norm is zero.

    Args:
        param (chainer.Parameter): Parameter, with its gradient.
        eta (float): Trust coefficient.
        weight_decay (float): Coefficient of the weight decay that is to follow.
        loss_scale (float): Factor that the gradient was multiplied by.

    Returns:
        A scalar array on the parameter's device, float32 at least.
    """
    xp = param.device.xp
    # Squares of float16 numbers would overflow.
    dtype = "f" if param.dtype.char == "e" else param.dtype
    weights, gradient = (
        xp.sqrt(xp.square(a.ravel().astype(dtype, copy=False)).sum())
        for a in (param.array, param.grad)
    )
    gradient /= gradient.dtype.type(loss_scale)
    divisor = gradient + weight_decay * weights
    is_zero = (weights == 0) | (gradient == 0)
    rate = eta * weights / xp.where(is_zero, xp.ones_like(divisor), divisor)
    return xp.where(is_zero, xp.ones_like(rate), rate)


class LARSHook:
    """Hook that gives every parameter its own learning rate, with any optimizer.

    The gradient of each parameter is multiplied by its rate::

        rate = eta * |w| / (|g| + weight_decay * |w|)
        g    = rate * (g + weight_decay * w)

    so that a step is in proportion to the weights, whatever the size of the gradients.
    A parameter that is zero, such as a bias at first, or whose gradient is, keeps the
    optimizer's learning rate. Chainer's ``GradientLARS`` has no ``eta``, and a
    threshold on the norm instead.

    Args:
        eta (float): Trust coefficient.
        weight_decay (float): Coefficient of the weight decay.

    Example:
        >>> import chainer.links as L
        >>> model = L.Linear(4, 3)
        >>> optimizer = chainer.optimizers.SGD(1.0).setup(model)
        >>> optimizer.add_hook(LARSHook(eta=0.01))

    See Naruse (2017), Volta Tensor Core training, "LARS"; You et al. (2017), Large
    batch training of convolutional networks.
    """

    name = "LARS"
    call_for_each_param = True
    timing = "pre"
    #: Parts of a parameter would get other rates than the whole.
    is_elementwise = False

    def __init__(self, eta: float = 0.001, weight_decay: float = 0.0) -> None:
        self.eta = eta
        self.weight_decay = weight_decay

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Multiplies the gradient, as a hook of an optimizer or of an update rule."""
        # An optimizer calls its hooks before the gradient is divided by the loss scale,
        # a rule calls its own afterwards.
        is_unscaled = any(hook is self for _, hook in named_hooks(rule))
        self.adapt(param, 1.0 if is_unscaled else float(param._loss_scale or 1.0))

    def adapt(self, param: chainer.Parameter, loss_scale: float = 1.0) -> None:
        """Multiplies the gradient.

        Args:
            param (chainer.Parameter): Parameter; nothing happens if it has no gradient.
            loss_scale (float): Factor that the gradient was multiplied by, and keeps.
        """
        if param.array is None or param.grad is None:
            return
        with chainer.using_device(param.device):
            rate = layer_rate(param, self.eta, self.weight_decay, loss_scale)
            # Neither the rate nor the decayed weights need fit into float16.
            gradient = param.grad.astype(rate.dtype, copy=False)
            if self.weight_decay:
                decay = self.weight_decay * loss_scale
                gradient = gradient + decay * param.array.astype(rate.dtype, copy=False)
            param.grad[...] = rate * gradient


class LARSRule(MomentumSGDRule):
    """Update rule of :class:`LARS`."""

    is_elementwise = False

    def update_core(self, param: chainer.Parameter) -> None:
        """Updates one parameter; its gradient is multiplied by the rate in place."""
        LARSHook(self.hyperparam.eta, self.hyperparam.weight_decay).adapt(param)
        super().update_core(param)


class LARS(MomentumSGD):
    """Momentum SGD whose learning rate fits each layer.

    ::

        rate   = eta * |w| / (|g| + weight_decay * |w|)
        v(t+1) = momentum * v(t) - lr * rate * (g + weight_decay * w)
        w(t+1) = w(t) + v(t+1)

    See :class:`LARSHook` for the rate of parameters that are zero. In float16, wrap it
    in :class:`MixedPrecision`, so that the norms are those of unscaled gradients.

    Args:
        lr (float): Learning rate of all layers, gamma in the slides.
        momentum (float): Momentum.
        eta (float): Trust coefficient.
        weight_decay (float): Coefficient of the weight decay.

    Example:
        >>> import chainer.links as L, numpy as np
        >>> model = L.Linear(1, 1, nobias=True, initialW=8)
        >>> optimizer = LARS(lr=0.5, eta=0.25).setup(model)
        >>> model.W.grad = np.full((1, 1), 100, 'f')
        >>> optimizer.update()
        >>> model.W.array                           # 8 - 0.5 * 0.25 * 8
        array([[7.]], dtype=float32)

    See Naruse (2017), Volta Tensor Core training, "LARS"; You et al. (2017), Large
    batch training of convolutional networks.
    """

    def __init__(
        self,
        lr: float = 1.0,
        momentum: float = 0.9,
        eta: float = 0.001,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr, momentum)
        self.hyperparam.eta = eta
        self.hyperparam.weight_decay = weight_decay

    eta = optimizer.HyperparameterProxy("eta")
    weight_decay = optimizer.HyperparameterProxy("weight_decay")

    def create_update_rule(self) -> Any:
        """Returns a :class:`LARSRule`."""
        return LARSRule(self.hyperparam)
