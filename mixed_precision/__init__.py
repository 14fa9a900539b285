"""Training in float16 with the accuracy of float32.

::

    model = to_float16(Net())                       # normalizations stay float32
    sgd = chainer.optimizers.MomentumSGD(0.01)
    optimizer = MixedPrecision(sgd, loss_scale=DynamicLossScale()).setup(model)

The recipe is that of Naruse's slides on Tensor Cores (2017): weights, activations and
gradients are stored in float16; products are added up in float32; the loss is scaled,
so that gradients of activations do not vanish; weights are updated in float32, and
rounded. :class:`MomentumSGD16` does without the float32 weights.

On a CPU, float16 products, convolutions and sums are computed in float32 and rounded
once (``chainer_compat``), which is what the matrix units of GPUs do: results are those
to expect there, speed is not.

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixed_precision.lars import LARS, LARSHook
    from mixed_precision.loss_scale import DynamicLossScale, LossScale, StaticLossScale
    from mixed_precision.model import float32_loss, to_float16
    from mixed_precision.momentum_sgd16 import MomentumSGD16
    from mixed_precision.optimizer import MixedPrecision
    from mixed_precision.statistics import (
        ActivationGradients,
        GradientReport,
        GradientStatistics,
    )

_MODULES = {
    "ActivationGradients": "statistics",
    "DynamicLossScale": "loss_scale",
    "GradientReport": "statistics",
    "GradientStatistics": "statistics",
    "LARS": "lars",
    "LARSHook": "lars",
    "LossScale": "loss_scale",
    "MixedPrecision": "optimizer",
    "MomentumSGD16": "momentum_sgd16",
    "StaticLossScale": "loss_scale",
    "float32_loss": "model",
    "to_float16": "model",
}

__all__ = [
    "ActivationGradients",
    "DynamicLossScale",
    "GradientReport",
    "GradientStatistics",
    "LARS",
    "LARSHook",
    "LossScale",
    "MixedPrecision",
    "MomentumSGD16",
    "StaticLossScale",
    "float32_loss",
    "to_float16",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mixed_precision' has no attribute {name!r}")
    module = importlib.import_module(f"mixed_precision.{_MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value
