"""NumPy's arrays as tensors of PyTorch, and back, in the same memory.

NumPy has no bfloat16. A tensor of that dtype becomes a float32 array, in new memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = Any

# Dtypes of most tensors, which NumPy has.
_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.int64})


def to_tensor(array: Array) -> torch.Tensor:
    """Returns a tensor with the memory of an array.

    Args:
        array (numpy.ndarray): An array of any shape. Memory that is read-only, or has a
            negative stride, is copied, since PyTorch has neither.

    Raises:
        TypeError: If it is an array of a GPU, or PyTorch has no dtype for it.

    Example:
        >>> x = np.zeros(2, np.float32)
        >>> to_tensor(x)[0] = 1
        >>> x
        array([1., 0.], dtype=float32)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"modules of PyTorch compute with NumPy's arrays, not with a"
            f" {type(array).__module__}.{type(array).__name__}: keep their layers and"
            f" what they are given on the CPU"
        )
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except ValueError:
        # The strides are negative, or no multiples of the size of an element.
        return torch.from_numpy(np.array(array, order="C"))


def to_array(tensor: torch.Tensor) -> Array:
    """Returns an array with the memory of a tensor of the CPU, without its graph.

    Args:
        tensor (torch.Tensor): A tensor of any shape. A sparse one becomes dense, a
            lazy conjugate is computed, and bfloat16 becomes float32.

    Raises:
        TypeError: If the tensor is on another device.

    Example:
        >>> to_array(torch.ones(2, requires_grad=True))
        array([1., 1.], dtype=float32)
    """
    if tensor.dtype in _PLAIN and tensor.layout is torch.strided and tensor.is_cpu:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.is_neg():
            # With ``force`` the same takes longer.
            return tensor.numpy()
    if not tensor.is_cpu:
        raise TypeError(
            f"a module of PyTorch computed a tensor on the device {tensor.device}, but"
            f" layers compute on the CPU: call module.cpu(), and let its forward make"
            f" tensors on the device of its input"
        )
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    # Without the graph, and without marks for a conjugation that is yet to come.
    return tensor.numpy(force=True)


def address_of(array: Array) -> int:
    """Returns the address of an array's first element."""
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr
