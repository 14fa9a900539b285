"""Classes of functions that ``chainer.functions`` had until Chainer 4.

::

    F.MaxPooling2D(2, 2)(x)                 F.max_pooling_2d(x, 2, 2)
    F.Clip(0, 1).apply((x,))[0]             F.clip(x, 0, 1)
    pool = F.MaxPooling2D(2, 2)             y, indexes = F.max_pooling_2d(
    y = pool(x); pool.indexes                   x, 2, 2, return_indices=True)
    F.spatial_pyramid_pooling_2d(x, 3, F.MaxPooling2D)
                                            F.spatial_pyramid_pooling_2d(x, 3, 'max')
"""

import functools
import importlib

from chainer_compat._warned import tell

#: Classes, with the functions that take what the classes took behind their inputs.
CLASSES = {
    "AbsoluteError": "absolute_error",
    "Accuracy": "accuracy",
    "Arccos": "arccos",
    "Arcsin": "arcsin",
    "Arctan": "arctan",
    "Arctan2": "arctan2",
    "ArgMax": "argmax",
    "ArgMin": "argmin",
    "AveragePooling2D": "average_pooling_2d",
    "BatchInv": "batch_inv",
    "BatchMatMul": "batch_matmul",
    "BinaryAccuracy": "binary_accuracy",
    "BroadcastTo": "broadcast_to",
    "CReLU": "crelu",
    "Cast": "cast",
    "Ceil": "ceil",
    "Clip": "clip",
    "ClippedReLU": "clipped_relu",
    "Concat": "concat",
    "Contrastive": "contrastive",
    "Copy": "copy",
    "Cos": "cos",
    "Cosh": "cosh",
    "CrossCovariance": "cross_covariance",
    "Cumsum": "cumsum",
    "Depth2Space": "depth2space",
    "Dropout": "dropout",
    "ELU": "elu",
    "Exp": "exp",
    "ExpandDims": "expand_dims",
    "Expm1": "expm1",
    "Flip": "flip",
    "FlipLR": "fliplr",
    "FlipUD": "flipud",
    "Floor": "floor",
    "Gaussian": "gaussian",
    "GetItem": "get_item",
    "HardSigmoid": "hard_sigmoid",
    "Hinge": "hinge",
    "HuberLoss": "huber_loss",
    "Identity": "identity",
    "Inv": "inv",
    "LSTM": "lstm",
    "LeakyReLU": "leaky_relu",
    "LocalResponseNormalization": "local_response_normalization",
    "Log": "log",
    "Log10": "log10",
    "Log1p": "log1p",
    "Log2": "log2",
    "LogSoftmax": "log_softmax",
    "LogSumExp": "logsumexp",
    "MatMul": "matmul",
    "Max": "max",
    "Maximum": "maximum",
    "Maxout": "maxout",
    "MeanAbsoluteError": "mean_absolute_error",
    "MeanSquaredError": "mean_squared_error",
    "Min": "min",
    "Minimum": "minimum",
    "Prod": "prod",
    "ReLU": "relu",
    "Reshape": "reshape",
    "ResizeImages": "resize_images",
    "Rollaxis": "rollaxis",
    "SelectItem": "select_item",
    "Sigmoid": "sigmoid",
    "SigmoidCrossEntropy": "sigmoid_cross_entropy",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softmax": "softmax",
    "SoftmaxCrossEntropy": "softmax_cross_entropy",
    "Softplus": "softplus",
    "Space2Depth": "space2depth",
    "SpatialPyramidPooling2D": "spatial_pyramid_pooling_2d",
    "SplitAxis": "split_axis",
    "Sqrt": "sqrt",
    "Square": "square",
    "SquaredDifference": "squared_difference",
    "SquaredError": "squared_error",
    "Squeeze": "squeeze",
    "Sum": "sum",
    "SwapAxes": "swapaxes",
    "Swapaxes": "swapaxes",
    "Tan": "tan",
    "Tanh": "tanh",
    "Tile": "tile",
    "Transpose": "transpose",
    "Triplet": "triplet",
    "Unpooling2D": "unpooling_2d",
}


class Function:
    """A function with its arguments, which is called with its inputs.

    Args:
        name (str): Name of the function of today.
        args: Arguments behind the inputs.
        kwargs: Further arguments.
    """

    def __init__(self, name, args, kwargs) -> None:
        self._name, self._args, self._kwargs = name, args, kwargs

    def __call__(self, *inputs):
        """Applies the function to variables or arrays."""
        if self._name == "concat":
            inputs = (inputs,)
        functions = importlib.import_module("chainer.functions")
        return getattr(functions, self._name)(*inputs, *self._args, **self._kwargs)

    def apply(self, inputs):
        """Applies the function to a tuple, and returns a tuple."""
        outputs = self(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)


class MaxPooling2D(Function):
    """Max pooling whose indexes may be read after the call, for an upsampling.

    Args:
        ksize (int or pair of ints): Size of the window.
        stride (int or pair of ints or None): Stride of the windows; their size by
            default.
        pad (int or pair of ints): Padding.
        cover_all (bool): Whether all cells are in a window.
        kwargs: Further arguments of ``F.max_pooling_2d``.
    """

    def __init__(self, ksize, stride=None, pad=0, cover_all=True, **kwargs) -> None:
        stride = ksize if stride is None else stride
        super().__init__("max_pooling_2d", (ksize, stride, pad, cover_all), kwargs)
        (self.kh, self.kw), (self.sy, self.sx) = _pair(ksize), _pair(stride)
        self.ph, self.pw = _pair(pad)
        self.cover_all = cover_all
        self._x = self._indexes = None

    def __call__(self, x):
        """Pools a variable or an array."""
        self._x, self._indexes = getattr(x, "array", x), None
        return super().__call__(x)

    @property
    def indexes(self):
        """Places of the maxima within their windows, of the last call."""
        if self._indexes is None and self._x is not None:
            chainer = importlib.import_module("chainer")
            with chainer.no_backprop_mode():
                functions = importlib.import_module("chainer.functions")
                _, self._indexes = functions.max_pooling_2d(
                    self._x, *self._args, return_indices=True, **self._kwargs
                )
        return self._indexes

    @indexes.setter
    def indexes(self, value):
        self._indexes = value


def _pair(size):
    return size if hasattr(size, "__getitem__") else (size, size)


def function_class(name):
    """Returns a class that ``chainer.functions`` had, or what makes the same.

    Raises:
        AttributeError: If there was no such class.
    """
    if name != "MaxPooling2D" and name not in CLASSES:
        raise AttributeError(f"module 'chainer.functions' has no attribute {name!r}")
    today = CLASSES.get(name, "max_pooling_2d")
    tell(
        "classes",
        f"F.{name}(...)(x) is F.{today}(x, ...) today, which chainer_compat calls",
    )
    if name == "MaxPooling2D":
        return MaxPooling2D

    def make(*args, **kwargs):
        return Function(today, args, kwargs)

    make.__name__ = name
    return make


def loaded(module) -> None:
    """Gives the classes back to ``chainer.functions``, when it was loaded."""
    if module.__name__ != "chainer.functions":
        return
    if "__getattr__" not in vars(module):
        module.__getattr__ = function_class
    original = module.spatial_pyramid_pooling_2d

    @functools.wraps(original)
    def pooling_2d(x, pyramid_height, pooling_class=None, pooling=None):
        pooling = pooling_class if pooling is None else pooling
        is_class = isinstance(pooling, type)
        return original(x, pyramid_height, "max" if is_class else pooling)

    module.spatial_pyramid_pooling_2d = pooling_2d
