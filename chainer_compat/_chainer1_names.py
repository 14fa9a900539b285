"""Functions of Chainer 1 that are links or functions by other names today."""

import importlib

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

#: Classes of functions, with the functions that do the same.
CLASSES = {
    "Accuracy": "accuracy",
    "AveragePooling2D": "average_pooling_2d",
    "BatchMatMul": "batch_matmul",
    "ClippedReLU": "clipped_relu",
    "Concat": "concat",
    "Copy": "copy",
    "CrossCovariance": "cross_covariance",
    "Dropout": "dropout",
    "ELU": "elu",
    "Exp": "exp",
    "ExpandDims": "expand_dims",
    "Gaussian": "gaussian",
    "LSTM": "lstm",
    "LeakyReLU": "leaky_relu",
    "LocalResponseNormalization": "local_response_normalization",
    "Log": "log",
    "LogSoftmax": "log_softmax",
    "MatMul": "matmul",
    "MaxPooling2D": "max_pooling_2d",
    "Maxout": "maxout",
    "MeanSquaredError": "mean_squared_error",
    "ReLU": "relu",
    "Reshape": "reshape",
    "Sigmoid": "sigmoid",
    "SigmoidCrossEntropy": "sigmoid_cross_entropy",
    "Softmax": "softmax",
    "SoftmaxCrossEntropy": "softmax_cross_entropy",
    "Softplus": "softplus",
    "SpatialPyramidPooling2D": "spatial_pyramid_pooling_2d",
    "SplitAxis": "split_axis",
    "Sum": "sum",
    "SwapAxes": "swapaxes",
    "Tanh": "tanh",
    "Transpose": "transpose",
    "Unpooling2D": "unpooling_2d",
}
#: Names that cannot be given back, with the line that works.
_GONE = {
    "VariationalLoss": "F.gaussian_kl_divergence(mean, ln_var)",
    "caffe": "chainer.links.caffe.CaffeFunction(path)",
}


class Function:
    """A function with its arguments, which is called with its inputs.

    Args:
        name (str): Name of the function of today.
        function: The function.
        args: Arguments behind the inputs.
        kwargs: Further arguments.
    """

    def __init__(self, name, function, args, kwargs) -> None:
        self._name, self._function = name, function
        self._args, self._kwargs = args, kwargs

    def __call__(self, *inputs):
        """Applies the function to variables or arrays."""
        if self._name == "concat":
            inputs = (inputs,)
        return self._function(*inputs, *self._args, **self._kwargs)


def function_class(name):
    """Returns a link or a class that ``chainer.functions`` had in Chainer 1.

    Raises:
        AttributeError: If Chainer 1 had no such name, or it cannot be given back.
    """
    if name in LINKS:
        tell("links", f"F.{name} became a link: write L.{name}, of chainer.links")
        return getattr(importlib.import_module("chainer.links"), name)
    functions = importlib.import_module("chainer.functions")
    if name in CLASSES:
        today = CLASSES[name]
        tell(
            "classes",
            f"F.{name}(...)(x) is F.{today}(x, ...) today, which chainer_compat calls",
        )
        function = getattr(functions, today)

        def make(*args, **kwargs):
            return Function(today, function, args, kwargs)

        make.__name__ = name
        return make
    if name in _GONE:
        raise AttributeError(f"F.{name} of Chainer 1 is gone: write {_GONE[name]}")
    raise AttributeError(f"module 'chainer.functions' has no attribute {name!r}")


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
