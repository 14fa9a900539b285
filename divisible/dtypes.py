"""The floating-point types of the inputs of layers and losses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import chainer
import numpy as np


def floating_dtypes(model: chainer.Link) -> set[np.dtype]:
    """Returns the floating-point types of a model's parameters."""
    found = {dtype_of(param) for param in model.params()}
    return {dtype for dtype in found if dtype.kind == "f"}


def dtype_of(param: chainer.Parameter) -> np.dtype:
    """Returns the dtype that a parameter has, or will have when it gets its shape."""
    if param.is_initialized:
        return np.dtype(param.dtype)
    return np.dtype(chainer.get_dtype(getattr(param.initializer, "dtype", None)))


def as_trainable(x: Any, dtypes: Collection[np.dtype]) -> Any:
    """Returns an input in the dtype of the layers, or refuses an unsuitable one.

    Args:
        x (array): An input of the model.
        dtypes: The floating-point types of all parameters. With float16 among them,
            activations are float16, and the others belong to normalizations. Empty for
            a model whose layers cast their inputs.
    """
    if x.dtype.kind == "f" and np.dtype(np.float16) in dtypes:
        return x.astype(np.float16, copy=False)
    if x.dtype.kind not in "fiub":
        raise TypeError(f"x is of dtype {x.dtype}, which Chainer cannot train on")
    if x.dtype.kind == "f" and len(dtypes) == 1 and x.dtype not in dtypes:
        (dtype,) = dtypes
        raise TypeError(
            f"x is {x.dtype} and the parameters are {dtype}: convert it with"
            f" x.astype('{dtype}')"
        )
    return x


def trainable_dtypes(dtypes: Collection[np.dtype]) -> frozenset[np.dtype]:
    """Returns dtypes of inputs that :func:`as_trainable` returns as they are.

    Args:
        dtypes: The floating-point types of all parameters, or nothing, as there.
    """
    return frozenset() if np.dtype(np.float16) in dtypes else frozenset(dtypes)


def in_loss_dtype(output: Any) -> Any:
    """Returns an output of the last layer in the loss's dtype, which is not float16."""
    if output.dtype == np.float16:
        return chainer.functions.cast(output, np.float32)
    return output
