"""Float16 on a CPU: products and sums in float32, rounded once (``_float16.py``)."""

from chainer_compat._shim import Edit, Shim


def _import(names: str, module: str = "import chainerx\n") -> Edit:
    """Adds an import to an existing line, so that line numbers stay."""
    names = f"from chainer_compat._float16 import {names}"
    return Edit(module, f"{module[:-1]}; {names}\n")


def _decorated(name: str, before: str, method: str) -> Edit:
    """Replaces the empty line before a method by a decorator."""
    return Edit(
        f"{before}\n\n    def {method}:", f"{before}\n    @{name}\n    def {method}:"
    )


def _rounded(before: str, method: str = "forward(self, inputs)") -> Edit:
    return _decorated("rounded_once", before, method)


def _widened(before: str, method: str = "forward(self, inputs)") -> Edit:
    return _decorated("multiplied_in_float32", before, method)


def _added(before: str, method: str = "forward(self, inputs)") -> Edit:
    return _decorated("rounded_once_everywhere", before, method)


_CPU = "forward_cpu(self, inputs)"
_CHECK = "from chainer.utils import type_check\n"
_AXIS = "            -x_type.ndim <= self.axis < x_type.ndim,\n        )"
_WHY = "NumPy multiplies float16 without BLAS, far slower than float32"
_SUM = "a sum of float16 rounds after every addition"

SHIMS = (
    Shim(
        name="float16-linear",
        module="chainer.functions.connection.linear",
        why=_WHY + "; the bias is added after rounding",
        edits=(
            _import("multiplied_in_float32, rounded_once"),
            _rounded("            return chainerx.linear(x, W),"),
            _rounded(
                "class LinearGradData(function_node.FunctionNode):\n\n"
                "    _config_use_ideep = None"
            ),
            _widened("        self._w_dtype = w_dtype"),
        ),
    ),
    Shim(
        name="float16-convolution-2d",
        module="chainer.functions.connection.convolution_2d",
        why=_WHY + "; the bias is added after rounding",
        edits=(
            _import("multiplied_in_float32, rounded_once"),
            _rounded("            cover_all=self.cover_all),", _CPU),
            _widened("    def check_layout_forward(self, inputs):\n        pass", _CPU),
        ),
    ),
    Shim(
        name="float16-deconvolution-2d",
        module="chainer.functions.connection.deconvolution_2d",
        why=_WHY + "; the taps of col2im are added in float16. It is the input"
        " gradient of convolution",
        edits=(
            _import("rounded_once"),
            _rounded(
                "                raise RuntimeError('Width in the output must be"
                " positive.')",
                _CPU,
            ),
        ),
    ),
    Shim(
        name="float16-convolution-nd",
        module="chainer.functions.connection.convolution_nd",
        why=_WHY,
        edits=(
            _import("multiplied_in_float32, rounded_once"),
            _rounded("        return y,"),
            _widened("            and self.ndim > 1)"),
        ),
    ),
    Shim(
        name="float16-deconvolution-nd",
        module="chainer.functions.connection.deconvolution_nd",
        why=_WHY,
        edits=(
            _import("rounded_once"),
            _rounded(
                "        return chainerx.conv_transpose(*inputs, stride=stride,"
                " pad=pad),"
            ),
        ),
    ),
    Shim(
        name="float16-matmul",
        module="chainer.functions.math.matmul",
        why=_WHY,
        edits=(
            _import("rounded_once"),
            _rounded("        return chainerx.dot(a, b),", "forward(self, x)"),
        ),
    ),
    Shim(
        name="float16-sum",
        module="chainer.functions.math.sum",
        why=_SUM + "; gradients of biases do",
        edits=(
            _import("rounded_once"),
            _rounded(
                "        return chainerx.sum(x, axis=self.axis,"
                " keepdims=self.keepdims),"
            ),
            _rounded("        self._shape = shape"),
        ),
    ),
    Shim(
        name="float16-cumsum",
        module="chainer.functions.math.cumsum",
        why=_SUM,
        edits=(
            _import("rounded_once", _CHECK),
            _rounded(
                "                type_check.expect(-self.axis - 1 < in_types[0].ndim)"
            ),
        ),
    ),
    Shim(
        name="float16-logsumexp",
        module="chainer.functions.math.logsumexp",
        why=_SUM,
        edits=(
            _import("rounded_once"),
            _rounded("        return chainerx.logsumexp(inputs[0], self.axis),"),
        ),
    ),
    Shim(
        name="float16-softmax",
        module="chainer.functions.activation.softmax",
        why=_SUM + ", and softmax is a quotient by one",
        edits=(
            _import("rounded_once", _CHECK),
            _rounded(_AXIS, "forward(self, x)"),
            _rounded("    def __init__(self, axis):\n        self.axis = axis"),
        ),
    ),
    Shim(
        name="float16-log-softmax",
        module="chainer.functions.activation.log_softmax",
        why=_SUM,
        edits=(
            _import("rounded_once"),
            _rounded(
                "        return chainerx.log_softmax(xs[0], axis=self.axis),",
                "forward(self, xs)",
            ),
            _rounded("        self._x_dtype = x_dtype\n        self.axis = axis"),
        ),
    ),
    Shim(
        name="float16-prelu",
        module="chainer.functions.activation.prelu",
        why=_SUM + "; the gradient of the slope is one",
        edits=(
            _import("rounded_once", _CHECK),
            _rounded("            gy_type.shape == x_type.shape\n        )", _CPU),
        ),
    ),
    Shim(
        name="float16-swish",
        module="chainer.functions.activation.swish",
        why=_SUM + "; the gradient of the slope is one",
        edits=(
            _import("rounded_once", _CHECK),
            _rounded(
                "                                           "
                " type_check.eval(beta_type.ndim)]\n        )",
                _CPU,
            ),
            _rounded("        self.reduction_axes = reduction_axes", _CPU),
        ),
    ),
    Shim(
        name="float16-einsum",
        module="chainer.functions.math.einsum",
        why=_SUM,
        edits=(
            _import("rounded_once", _CHECK),
            _rounded("                    shape_dict[char] = shape"),
            _rounded("        self.out_shape = out_shape"),
        ),
    ),
    Shim(
        name="float16-repeat",
        module="chainer.functions.array.repeat",
        why=_SUM + "; the gradient of what is repeated is one",
        edits=(
            _import("rounded_once", _CHECK),
            _rounded("        self.in_dtype = in_dtype"),
        ),
    ),
    Shim(
        name="float16-embed-id",
        module="chainer.functions.connection.embed_id",
        why=_SUM + "; the gradients of frequent words are such",
        edits=(
            _import("rounded_once_everywhere", _CHECK),
            _added(
                "        self.w_shape = w_shape\n"
                "        self.ignore_label = ignore_label"
            ),
        ),
    ),
    Shim(
        name="float16-get-item",
        module="chainer.functions.array.get_item",
        why=_SUM + "; gradients of elements that are taken several times are such, and"
        " CuPy does not add float16",
        edits=(
            _import("rounded_once_everywhere"),
            _added("        self._in_shape = in_shape"),
        ),
    ),
    Shim(
        name="float16-scatter-add",
        module="chainer.functions.array.scatter_add",
        why=_SUM + ", and CuPy does not add float16",
        edits=(
            _import("rounded_once_everywhere"),
            _added(
                "        type_check.expect(in_types[0].ndim >= valid_slice)",
                "forward(self, xs)",
            ),
        ),
    ),
    Shim(
        name="float16-layer-normalization",
        module="chainer.links.normalization.layer_normalization",
        why="layer normalization refuses float16 inputs with float32 scales, unlike"
        " the other normalizations; it is computed in float32 and rounded",
        edits=(
            Edit(
                "        return layer_normalization.layer_normalization(\n"
                "            x, self.gamma, self.beta, self.eps)",
                "        from chainer.functions import cast; half = x.dtype == 'e'; "
                "y = layer_normalization.layer_normalization("
                "cast(x, self.gamma.dtype) if half else x,"
                " self.gamma, self.beta, self.eps)\n"
                "        return cast(y, x.dtype) if half else y",
            ),
        ),
    ),
    Shim(
        name="float16-decorrelated-batch-normalization",
        module="chainer.links.normalization.decorrelated_batch_normalization",
        why="NumPy and CuPy find no eigenvectors in float16, and evaluation refuses"
        " float16 inputs with float32 statistics; it is computed in float32 and"
        " rounded",
        edits=(
            Edit(
                "('finetune', False))\n",
                "('finetune', False)); half = x.dtype == numpy.float16;"
                " x = functions.cast(x, self.avg_mean.dtype) if half else x\n",
            ),
            Edit(
                "        return ret\n",
                "        return functions.cast(ret, numpy.float16) if half else ret\n",
            ),
        ),
    ),
    Shim(
        name="float16-multi-node-batch-normalization",
        module="chainermn.functions.batch_normalization",
        why="the squares for the variance are rounded to float16, in which those from"
        " 256 on overflow",
        edits=(
            Edit("xp.square(x).mean(", "xp.square(x, dtype=interm_dtype).mean(", 2),
        ),
    ),
)
