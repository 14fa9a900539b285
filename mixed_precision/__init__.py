"""Training in float16 with the accuracy of float32.

.. code-block:: python

    model = to_float16(Net())                       # normalizations stay float32
    sgd = chainer.optimizers.MomentumSGD(0.01)
    optimizer = MixedPrecision(sgd, loss_scale=DynamicLossScale()).setup(model)

The recipe is that of Naruse's slides on Tensor Cores (2017). Weights, activations and
gradients are stored in float16, and products are added up in float32. The loss is
scaled, so that gradients of activations do not vanish. Weights are updated in float32,
and rounded. :class:`MomentumSGD16` does without the float32 weights.

On a CPU, float16 products, convolutions and sums are computed in float32 and rounded
once (``chainer_compat``), which is what the matrix units of GPUs do. Results are those
to expect on a GPU; speed is not.

The modules::

    optimizer       MixedPrecision: an optimizer around another one
    loss_scale      the factor of the loss
    agreement       one decision on all ranks: step, or skip the step
    step            one step, from gradients to weights, with the hooks between
    update_ahead    an update before the decision of all ranks has come
    masters         float32 masters, in flat buffers or waiting for them
    fused           update rules that have a kernel
    flat            parameters of one dtype in flat buffers
    parameters      checks of optimizers, parameters and gradients
    streamed        parameters on disk, which are their own masters
    memory          the memory that updates need
    momentum_sgd16  momentum SGD without float32 weights
    lars            a learning rate for each layer
    model           models in float16
    layer_types     the types of a layer, forward and backward apart
    kept_layers     layers with other types, and the casts of their inputs
    typed_links     links that compute in types of their own
    half_sum_links  links whose products are added up in float16
    statistics      what float16 loses of gradients
    exponent_histogram  numbers, counted by their exponents

Names are imported when they are first used.
"""

from chainer_compat._packages import check

check(__name__)

from divisible.lazy_names import lazy_names  # noqa: E402

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "mixed_precision.lars": ["LARS", "LARSHook"],
        "mixed_precision.layer_types": ["LayerTypes"],
        "mixed_precision.loss_scale": [
            "DynamicLossScale",
            "LossScale",
            "StaticLossScale",
        ],
        "mixed_precision.model": ["float32_loss", "to_float16"],
        "mixed_precision.momentum_sgd16": ["MomentumSGD16"],
        "mixed_precision.optimizer": ["MixedPrecision"],
        "mixed_precision.statistics": [
            "ActivationGradients",
            "GradientReport",
            "GradientStatistics",
        ],
    },
)
