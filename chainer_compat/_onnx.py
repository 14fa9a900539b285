"""The tables of ``onnx.mapping``, which is gone, for ``onnx_chainer``."""

from __future__ import annotations

import numpy

# The field that holds the numbers of a constant in readable form, by the type of the
# tensor. Other types, such as FLOAT16, stay bytes.
_FIELDS = {
    "FLOAT": "float_data",
    "DOUBLE": "double_data",
    "INT32": "int32_data",
    "INT64": "int64_data",
    "UINT8": "int32_data",
    "UINT16": "int32_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "BOOL": "int32_data",
}


def storage_field(tensor_type: int) -> str | None:
    """Returns the field of a tensor of this type that is readable, if any."""
    from onnx import TensorProto

    return _FIELDS.get(TensorProto.DataType.Name(tensor_type))


class _TensorTypes:
    """The ONNX type of a NumPy dtype, as a mapping."""

    def __getitem__(self, dtype) -> int:
        from onnx import helper

        return helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))


NP_TYPE_TO_TENSOR_TYPE = _TensorTypes()
