"""Functions of Chainer 1 that are links today, and methods of optimizers."""

import importlib

from chainer_compat import _function_classes
from chainer_compat._warned import tell

#: Names in ``chainer.functions`` that became links.
LINKS = [
    "BatchNormalization",
    "Bilinear",
    "BinaryHierarchicalSoftmax",
    "Convolution2D",
    "Deconvolution2D",
    "EmbedID",
    "Inception",
    "InceptionBN",
    "Linear",
    "NegativeSampling",
    "PReLU",
    "Parameter",
]

#: Names that cannot be given back, with the line that works.
_GONE = {
    "VariationalLoss": "F.gaussian_kl_divergence(mean, ln_var)",
    "caffe": "chainer.links.caffe.CaffeFunction(path)",
}


def function_class(name):
    """Returns a link or a class that ``chainer.functions`` had in Chainer 1.

    Raises:
        AttributeError: If Chainer 1 had no such name, or it cannot be given back.
    """
    if name in LINKS:
        tell("links", f"F.{name} became a link: write L.{name}, of chainer.links")
        return getattr(importlib.import_module("chainer.links"), name)
    if name in _GONE:
        raise AttributeError(f"F.{name} of Chainer 1 is gone: write {_GONE[name]}")
    return _function_classes.function_class(name)


def zero_grads(self) -> None:
    """Fills all gradients with zeros, which links without a use have as well."""
    tell("zero_grads", "optimizer.zero_grads() is model.cleargrads() in the script")
    for param in self.target.params():
        param.cleargrad()
        if param.is_initialized:
            param.grad = param.xp.zeros_like(param.array)


def clip_grads(self, maxnorm) -> None:
    """Scales all gradients so that their common norm is at most ``maxnorm``."""
    tell(
        "clip_grads",
        "optimizer.clip_grads(norm) before each update is, once after setup,"
        " optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(norm))",
    )
    hooks = importlib.import_module("chainer.optimizer_hooks")
    hooks.GradientClipping(maxnorm)(self)


def weight_decay(self, decay) -> None:
    """Adds ``decay`` times the parameters to the gradients."""
    tell(
        "weight_decay",
        "optimizer.weight_decay(rate) before each update is, once after setup,"
        " optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(rate))",
    )
    for param in self.target.params():
        if param.grad is not None:
            param.grad += decay * param.array


OPTIMIZER_METHODS = (zero_grads, clip_grads, weight_decay)
