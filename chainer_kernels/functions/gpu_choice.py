"""Whether and how cuDNN computes, as Chainer's configuration and the arrays say."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainer.backends import cuda

from chainer_kernels.providers import cudnn
from chainer_kernels.providers.cudnn_library import EngineChoice

Array = Any


def takes(*arrays: Array) -> bool:
    """Returns whether cuDNN is to compute with such arrays.

    The arrays must be all float32 or all float16, not empty, and on the current GPU.
    """
    dtype = arrays[0].dtype
    return (
        all(type(a) is cuda.ndarray and a.dtype == dtype for a in arrays)
        and dtype.char in "ef"
        and all(a.size for a in arrays)
        and chainer.config.use_cudnn != "never"
        and has_cudnn()
        and all(a.data.device_id == cudnn.device() for a in arrays)
    )


def has_cudnn() -> bool:
    """Returns whether cuDNN is available for CuPy, and is not disabled.

    CuPy 13 has functions of cuDNN itself; Chainer uses those.
    """
    return (
        cuda.available
        and not cuda.cudnn_enabled
        and not cuda._cudnn_disabled_by_user
        and cudnn.is_usable()
    )


def choice(x: Array) -> EngineChoice:
    """Returns which engines may compute with an array.

    Where nothing else is said, float32 is computed in float32, as on a CPU.
    """
    config = chainer.config
    if config.use_cudnn_tensor_core == "auto":
        tensor_cores = x.dtype == np.float16
    else:
        tensor_cores = cuda.should_use_cudnn_tensor_core(x.dtype)
    return EngineChoice(
        bool(tensor_cores), bool(config.cudnn_deterministic), bool(config.autotune)
    )
