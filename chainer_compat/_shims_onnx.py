"""Repairs of ``onnx_chainer``, which comes with Chainer, for today's onnx."""

from chainer_compat._shim import Edit, Shim, since

_MAPPING = "onnx.mapping is gone"
_LOOKUP = Edit(
    "from onnx.mapping import NP_TYPE_TO_TENSOR_TYPE\n",
    "from chainer_compat._onnx import NP_TYPE_TO_TENSOR_TYPE\n",
)

SHIMS = (
    Shim(
        name="onnx-mapping-export",
        module="onnx_chainer.export",
        why=_MAPPING + ", so that export says that ONNX is not installed",
        why_not_needed=since("onnx", "1.13"),
        edits=(
            Edit(
                "    from onnx.mapping import NP_TYPE_TO_TENSOR_TYPE\n",
                "    from chainer_compat._onnx import NP_TYPE_TO_TENSOR_TYPE\n",
            ),
        ),
    ),
    Shim(
        name="onnx-mapping-array",
        module="onnx_chainer.functions.array",
        why=_MAPPING,
        why_not_needed=since("onnx", "1.13"),
        edits=(_LOOKUP,),
    ),
    Shim(
        name="onnx-mapping-math",
        module="onnx_chainer.functions.math",
        why=_MAPPING,
        why_not_needed=since("onnx", "1.13"),
        edits=(_LOOKUP,),
    ),
    Shim(
        name="onnx-mapping-context",
        module="onnx_chainer.context",
        why=_MAPPING,
        why_not_needed=since("onnx", "1.13"),
        edits=(
            Edit(
                "from onnx import numpy_helper\n",
                "from onnx import numpy_helper; from chainer_compat import _onnx\n",
            ),
            Edit(
                "onnx.mapping.STORAGE_TENSOR_TYPE_TO_FIELD.get(\n"
                "        tensor.data_type, None)\n",
                "_onnx.storage_field(\n        tensor.data_type)\n",
            ),
        ),
    ),
    Shim(
        name="onnx-missing",
        module="onnx_chainer.export",
        why="without onnx, its version from 2020 is asked for; with an onnx that fails"
        " to import, the reason is missing",
        edits=(
            Edit(
                "except ImportError:\n    _available = False\n",
                "except ImportError as error:\n"
                "    _available = False; _reason = str(error)\n",
            ),
            Edit(
                "            'ONNX is not installed on your environment. Exporting your"
                " model '\n            'in ONNX format needs the onnx package.\\n\\n'\n"
                "            '\\t$ pip install \\'onnx<1.7.0\\'\\n\\n')\n",
                "            'onnx cannot be imported (' + _reason + '). Exporting a"
                " model '\n            'in ONNX format needs it.\\n\\n'\n"
                "            '\\t$ pip install \\'onnx>=1.16\\'\\n\\n')\n",
            ),
        ),
    ),
    Shim(
        name="onnx-missing-testcase",
        module="onnx_chainer.export_testcase",
        why="without onnx, export_testcase ends in a NameError",
        edits=(
            Edit(
                "from onnx_chainer.export import _available\n",
                "from onnx_chainer.export import _available, _check_available\n",
            ),
            Edit(
                "    os.makedirs(out_dir, exist_ok=True)\n",
                "    _check_available(); os.makedirs(out_dir, exist_ok=True)\n",
            ),
        ),
    ),
    Shim(
        name="onnx-testcase-gradients",
        module="onnx_chainer.export_testcase",
        why="output_grad=True takes the names of several outputs for their values",
        edits=(
            Edit(
                "outputs = chainer.functions.identity(*outputs)",
                "outputs = dict(zip(outputs, chainer.functions.identity("
                "*outputs.values())))",
            ),
        ),
    ),
    Shim(
        name="onnx-ir-version",
        module="onnx_chainer.export",
        why="files of opset 11 and older are marked with the newest format of the"
        " installed onnx, which older runtimes refuse to read",
        edits=(
            Edit(
                "model.ir_version = onnx.IR_VERSION",
                "model.ir_version = helper.find_min_ir_version_for("
                "opset_imports, True)",
            ),
        ),
    ),
    Shim(
        name="onnx-one-hot",
        module="onnx_chainer.functions.loss",
        why="the depth of OneHot is an array of one element, of which onnx's reference"
        " evaluator makes an int, and NumPy 2.4 does not",
        edits=(Edit("np.array([x_var.shape[1]], ", "np.array(x_var.shape[1], "),),
    ),
    Shim(
        name="onnx-fixed-batch-normalization",
        module="onnx_chainer.functions.normalization",
        why="the averages of a batch normalization that is not training are written"
        " with momentum 0, by which onnx's reference evaluator replaces them by those"
        " of the batch; with 1 they stay",
        edits=(Edit("getattr(func, 'decay', 0.)", "getattr(func, 'decay', 1.)"),),
    ),
)
