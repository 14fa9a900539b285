"""Parts of Chainer that have a kernel: one row for each, which loads nothing."""

from __future__ import annotations

import functools
import importlib
from typing import Callable, NamedTuple


class KernelEntry(NamedTuple):
    """A method of Chainer's that a kernel stands for.

    Attributes:
        module: Where Chainer has it.
        name: The class and the method, ``'ReLU.forward_cpu'``, or a function.
        kernel: The module in ``chainer_kernels.functions`` and the function in it.
            It gets the arguments of the method, the :class:`~chainer.FunctionNode`
            first, and returns what the method would, or ``NotImplemented`` for inputs
            that it leaves to Chainer. A kernel of a function gets its arguments.
        by: Name of what computes, to be shown; ``{provider}`` is the active provider.
    """

    module: str
    name: str
    kernel: str
    by: str = "Numba"

    @property
    def label(self) -> str:
        """The method with the last part of its module, and ``links`` for a link's."""
        *package, module = self.module.split(".")
        return f"{'links.' * ('links' in package)}{module}.{self.name}"

    def load(self) -> Callable:
        """Returns the kernel."""
        return _load(self.kernel)


class Backward(NamedTuple):
    """How the backward of a function can be taken apart.

    Attributes:
        is_splittable: Whether ``backward`` may be called twice, for a part of the
            inputs each time, at no extra cost.
        weights: The function that returns what to add to the gradients of parameters;
            or its place in ``chainer_kernels.functions``, as ``'module:name'``. Empty
            if there is none.
        is_only_told: Whether it is asked in debug mode as well, because no weight
            gradient is an array in memory that Chainer could look at.
        has_arrays: Whether a method ``gradient_arrays(indexes, output_gradients)``
            computes the same as ``backward``, with arrays in place of variables. It
            may compute an array when those before have been taken.
        is_given_all: Whether ``weights`` gets the gradients of all outputs, which are
            variables or ``None``. Otherwise it gets the array of the first one.
    """

    is_splittable: bool = False
    weights: str | Callable = ""
    is_only_told: bool = False
    has_arrays: bool = False
    is_given_all: bool = False

    def load(self) -> Callable | None:
        """Returns the function that computes what to add, if there is one."""
        if callable(self.weights):
            return self.weights
        return _load(self.weights) if self.weights else None


def _load(name: str) -> Callable:
    module, _, function = name.partition(":")
    return getattr(
        importlib.import_module(f"chainer_kernels.functions.{module}"), function
    )


def _entries(
    modules: str, rows: dict[str, dict[str, str]], by: str = "Numba"
) -> tuple[KernelEntry, ...]:
    """Returns the entries of a table: kernels by methods, by modules of Chainer."""
    return tuple(
        KernelEntry(f"chainer.{modules}.{module}", name, kernel, by)
        for module, methods in rows.items()
        for name, kernel in methods.items()
    )


_ACTIVATIONS = _entries(
    "functions.activation",
    {
        "clipped_relu": {
            "ClippedReLU.forward_cpu": "activations:clipped_relu",
            "ClippedReLUGrad2.forward_cpu": "activations:clipped_relu_grad",
        },
        "elu": {
            "ELU.forward_cpu": "activations:elu",
            "ELUGrad.forward_cpu": "activations:elu_grad",
        },
        "leaky_relu": {
            "LeakyReLU.forward_cpu": "activations:leaky_relu",
            "_LeakyReLUGrad.forward_cpu": "activations:leaky_relu_grad",
        },
        "log_softmax": {
            "LogSoftmax.forward": "softmax:log_softmax",
            "LogSoftmaxGrad.forward": "softmax:log_softmax_grad",
        },
        "relu": {
            "ReLU.forward_cpu": "activations:relu",
            "ReLUGrad2.forward_cpu": "activations:relu_grad",
        },
        "sigmoid": {
            "Sigmoid.forward_cpu": "activations:sigmoid",
            "SigmoidGrad.forward_cpu": "activations:sigmoid_grad",
        },
        "softmax": {
            "Softmax.forward": "softmax:softmax",
            "_SoftmaxGrad.forward": "softmax:softmax_grad",
        },
        "tanh": {
            "Tanh.forward_cpu": "activations:tanh",
            "TanhGrad.forward_cpu": "activations:tanh_grad",
        },
    },
)

_CONVOLUTIONS = _entries(
    "functions.connection",
    {
        "convolution_2d": {
            "Convolution2DFunction.forward_cpu": "convolution:convolution",
            "Convolution2DGradW.forward_cpu": "convolution:weight_gradient",
        },
        "deconvolution_2d": {
            "Deconvolution2DFunction.forward_cpu": "convolution:deconvolution_2d",
        },
    },
    by="{provider}",
)

_GPU_CONVOLUTIONS = _entries(
    "functions.connection",
    {
        "convolution_2d": {
            "Convolution2DFunction.forward_gpu": "gpu_convolution:convolution",
            "Convolution2DGradW.forward_gpu": "gpu_convolution:weight_gradient",
        },
        "deconvolution_2d": {
            "Deconvolution2DFunction.forward_gpu": "gpu_convolution:deconvolution_2d",
        },
    },
    by="cuDNN",
)

_CONVOLUTIONS_ANYWHERE = _entries(
    "functions.connection",
    {
        "convolution_nd": {
            "ConvolutionND.forward": "convolution:convolution",
            "ConvolutionNDGradW.forward": "convolution:weight_gradient",
        },
        "deconvolution_nd": {
            "DeconvolutionND.forward": "convolution:deconvolution_nd",
        },
    },
    by="{provider}; cuDNN on a GPU",
)

_BATCH_NORMALIZATIONS = _entries(
    "functions.normalization",
    {
        "batch_normalization": {
            "GeneralBatchNormalizationImpl.forward": "batch_normalization:forward",
            "GeneralBatchNormalizationImpl.backward": "batch_normalization:backward",
        },
    },
    by="Numba; cuDNN on a GPU",
)

_NORMALIZATIONS = _entries(
    "functions.normalization",
    {
        "batch_normalization": {
            "FixedBatchNormalization.forward": "batch_normalization:fixed",
            "FixedBatchNormalizationGrad.forward": "batch_normalization:fixed_grad",
        },
        "group_normalization": {
            "GroupNormalization.forward": "group_normalization:forward",
            "GroupNormalization.backward": "group_normalization:backward",
        },
        "layer_normalization": {
            "LayerNormalization.forward": "layer_normalization:forward",
            "LayerNormalization.backward": "layer_normalization:backward",
        },
    },
)

_OPTIMIZERS = _entries(
    "optimizers",
    {
        module: {f"{rule}.update_core_cpu": "optimizers:update"}
        for module, rule in {
            "sgd": "SGDRule",
            "momentum_sgd": "MomentumSGDRule",
            "corrected_momentum_sgd": "CorrectedMomentumSGDRule",
            "nesterov_ag": "NesterovAGRule",
            "adam": "AdamRule",
            "ada_grad": "AdaGradRule",
            "ada_delta": "AdaDeltaRule",
            "rmsprop": "RMSpropRule",
            "rmsprop_graves": "RMSpropGravesRule",
            "smorms3": "SMORMS3Rule",
            "msvag": "MSVAGRule",
        }.items()
    },
)

_POOLING = _entries(
    "functions.pooling",
    {
        "max_pooling_nd": {
            "MaxPoolingND.forward_cpu": "pooling:max_pooling",
            "MaxPoolingNDGrad.forward_cpu": "pooling:max_pooling_grad",
            "MaxPoolingNDWithIndexes.forward_cpu": "pooling:max_pooling_with_indexes",
        },
        "average_pooling_2d": {
            "AveragePooling2D.forward_cpu": "pooling:average_pooling_2d",
            "AveragePooling2DGrad.forward_cpu": "pooling:average_pooling_2d_grad",
        },
        "average_pooling_nd": {
            "AveragePoolingND.forward_cpu": "pooling:average_pooling_nd",
            "AveragePoolingNDGrad.forward_cpu": "pooling:average_pooling_nd_grad",
        },
        "upsampling_2d": {
            "Upsampling2D.forward_cpu": "pooling:upsampling_2d",
            "Upsampling2DGrad.forward_cpu": "pooling:upsampling_2d_grad",
        },
        "unpooling_2d": {
            "Unpooling2D.forward": "pooling:unpooling_2d",
            "Unpooling2DGrad.forward": "pooling:unpooling_grad",
        },
        "unpooling_nd": {
            "UnpoolingND.forward": "pooling:unpooling_nd",
            "UnpoolingNDGrad.forward": "pooling:unpooling_grad",
        },
    },
)

_LOSSES = _entries(
    "functions.loss",
    {
        "softmax_cross_entropy": {
            "SoftmaxCrossEntropy.forward_cpu": "softmax:cross_entropy",
            "_SoftmaxCrossEntropyGrad_NoDoubleBackprop.forward_cpu": (
                "softmax:cross_entropy_grad"
            ),
        },
    },
)

_RECURRENT = _entries(
    "functions.rnn",
    {"n_step_rnn": {"n_step_rnn_impl": "recurrent:n_step_rnn_impl"}},
    by="{provider}",
)

_CELLS = _entries(
    "links.rnn",
    {
        "lstm": {
            "LSTM.forward": "recurrent_links:lstm",
            "StatelessLSTM.forward": "recurrent_links:stateless_lstm",
        },
        "gru": {
            "GRU.forward": "recurrent_links:gru",
            "StatefulGRU.forward": "recurrent_links:stateful_gru",
            "StatelessGRU.forward": "recurrent_links:stateless_gru",
        },
    },
    by="{provider}",
)

_OTHERS = _entries(
    "functions",
    {
        "rnn.lstm": {
            "LSTM.forward": "recurrent_cells:lstm",
            "LSTMGrad.forward": "recurrent_cells:lstm_grad",
        },
        "connection.embed_id": {"EmbedIDGrad.forward": "embedding:embed_id_grad"},
        "noise.dropout": {
            "Dropout.forward_cpu": "dropout:dropout",
            "DropoutGrad.forward": "dropout:dropout_grad",
        },
        "math.sum": {"Sum.forward": "sums:sum_over_axes"},
    },
)

_PRODUCTS = _entries(
    "functions",
    {
        "connection.linear": {
            "LinearFunction.forward": "products:linear",
            "LinearGradData.forward": "products:linear_grad_data",
            "LinearGradWeight.forward": "products:linear_grad_weight",
        },
    },
    by="{provider}",
)

_STACKS = _entries(
    "functions",
    {"math.matmul": {"MatMul.forward": "products:matmul"}},
    by="{provider}, NumPy for stacks",
)

CATALOGUE = (
    *_ACTIVATIONS,
    *_CONVOLUTIONS,
    *_GPU_CONVOLUTIONS,
    *_CONVOLUTIONS_ANYWHERE,
    *_BATCH_NORMALIZATIONS,
    *_NORMALIZATIONS,
    *_OPTIMIZERS,
    *_POOLING,
    *_LOSSES,
    *_RECURRENT,
    *_CELLS,
    *_OTHERS,
    *_PRODUCTS,
    *_STACKS,
)

#: Entries by exact class, within ``chainer.functions`` or
#: ``chainer_kernels.functions``; a subclass may do anything.
BACKWARD = {
    "array.concat:Concat": Backward(True),
    "connection.convolution_2d:Convolution2DFunction": Backward(
        True, "weight_gradients:convolution"
    ),
    "connection.convolution_nd:ConvolutionND": Backward(
        True, "weight_gradients:convolution"
    ),
    "connection.deconvolution_2d:Deconvolution2DFunction": Backward(
        True, "weight_gradients:deconvolution"
    ),
    "connection.deconvolution_nd:DeconvolutionND": Backward(
        True, "weight_gradients:deconvolution"
    ),
    "connection.embed_id:EmbedIDFunction": Backward(True, "embedding:weights"),
    "connection.linear:LinearFunction": Backward(True, "weight_gradients:linear"),
    "connection.local_convolution_2d:LocalConvolution2DFunction": Backward(True),
    "math.basic_math:Add": Backward(True),
    "math.basic_math:Mul": Backward(True),
    "math.basic_math:Sub": Backward(True),
    "math.einsum:EinSum": Backward(True),
    "math.matmul:MatMul": Backward(True),
    "math.tensordot:TensorDot": Backward(True),
    "block_products:BlockProduct": Backward(True, "block_products:contributions"),
    "recurrent:NStepLayer": Backward(True),
    **dict.fromkeys(
        (f"recurrent_steps:{name}Step" for name in ("LSTM", "FirstGRU", "GRU")),
        Backward(True, "recurrent_steps:contributions", is_given_all=True),
    ),
}


@functools.cache
def backward_of(function: type) -> Backward:
    """Returns how the backward of a function can be taken apart.

    Args:
        function: The exact type of a :class:`~chainer.FunctionNode`. One that is not
            Chainer's may say it by itself, as its attribute ``taken_apart``.

    Example:
        >>> from chainer.functions.math.basic_math import Add
        >>> backward_of(Add).is_splittable
        True
    """
    if "taken_apart" in vars(function):
        return vars(function)["taken_apart"]
    package, _, module = function.__module__.partition(".functions.")
    if package not in ("chainer", "chainer_kernels"):
        return Backward()
    return BACKWARD.get(f"{module}:{function.__qualname__}", Backward())


@functools.cache
def weights_of(function: type) -> Callable | None:
    """Returns the function that computes weight gradients to add, if there is one."""
    return backward_of(function).load()


@functools.cache
def by_module() -> dict[str, list[KernelEntry]]:
    """Returns the entries by the module that they belong to."""
    found: dict[str, list[KernelEntry]] = {}
    for entry in CATALOGUE:
        found.setdefault(entry.module, []).append(entry)
    return found
