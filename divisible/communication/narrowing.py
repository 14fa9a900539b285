"""Narrow numbers in messages between stages.

A channel may send floating-point arrays in a dtype of the catalogue
(:mod:`divisible.communication.wire`), if that has fewer bits than their own::

    sender    float32 or float16  --encode-->  scales and codes  --+
                                                                   |  the wire
    receiver  float32 or float16  <--decode--  scales and codes  <-+

The signature of a message has the dtype of each array, so receivers need no other
knowledge. Integers and bools always travel as they are. So does an array with a number
that the dtype cannot hold: infinity, NaN, or one beyond the largest float16 if that is
the dtype. In 8 bits of floating point, a number near the largest of the array's own
dtype counts as one, because it may be rounded up to infinity. Such numbers arrive bit
for bit, and a diverging training shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from divisible.communication.signatures import Signature, Tensor, TensorSpec, signature
from divisible.communication.wire import BLOCK, WIRE, WireDtype, check_wire_dtype
from divisible.records import shown

#: The dtypes of messages over an edge: of activations forward, of gradients backward.
Pair = tuple[str, str]
_BYTES_OF_FLOAT32 = 4


def pair_of(message_dtype: Any) -> Pair:
    """Returns the dtypes of activations and of gradients.

    Args:
        message_dtype: One name for both, or two names.

    Raises:
        ValueError: If the value is neither a name of the catalogue nor two.

    Example:
        >>> pair_of("int8"), pair_of(["int8", "bf16"])
        (('int8', 'int8'), ('int8', 'bf16'))
    """
    if not isinstance(message_dtype, (list, tuple)):
        check_wire_dtype("message_dtype", message_dtype)
        return message_dtype, message_dtype
    if len(message_dtype) != 2:
        raise ValueError(
            f"message_dtype must be one name, or two for activations and gradients, not"
            f" {shown(message_dtype)}"
        )
    for what, name in zip(("activations", "gradients"), message_dtype):
        check_wire_dtype(f"message_dtype of {what}", name)
    forward, backward = message_dtype
    return forward, backward


def over(edges: Sequence[Pair], start: int, end: int) -> Pair:
    """Returns the dtypes of messages between two stages.

    A skip connection passes by several edges. It has the dtypes with the fewest bits of
    them, because its way has the slowest link.

    Args:
        edges: The dtypes of each edge between neighbouring stages.
        start: Stage that sends activations.
        end: Stage that receives them.

    Example:
        >>> over([("fp32", "fp32"), ("int8", "bf16")], 0, 2)
        ('int8', 'bf16')
    """
    forward, backward = (
        min(names, key=lambda name: WIRE[name].bits) for names in zip(*edges[start:end])
    )
    return forward, backward


def encoded(array: Any, wire: WireDtype) -> Any:
    """Returns the message of an array; ``None`` if the array travels as it is.

    Args:
        array: NumPy or CuPy array of any dtype, in the order in which it is sent.
        wire: The dtype on the wire.

    Returns:
        Array of uint8, of the same module.

    Raises:
        TypeError: If the array is complex, or wider than float32.

    Example:
        >>> encoded(np.ones(4, np.float32), WIRE["int8"]).size     # and a scale
        8
        >>> encoded(np.ones(4, np.int32), WIRE["int8"])
    """
    kind, n_bytes = array.dtype.kind, array.dtype.itemsize
    if kind == "c" or (kind == "f" and n_bytes > _BYTES_OF_FLOAT32):
        raise TypeError(
            f"an array of {array.dtype} cannot travel in {wire.name!r}, which is made"
            f" from float32: cast it to float32 before the cut, or leave message_dtype"
            f" out"
        )
    if kind != "f" or wire.bits >= 8 * n_bytes or not array.size:
        return None
    flat = array.astype(np.float32, order="C", copy=False).reshape(-1)
    if math.isfinite(wire.greatest) and max(flat.max(), -flat.min()) > wire.greatest:
        return None
    message = np.empty_like(flat, np.uint8, shape=wire.n_bytes(flat.size, BLOCK))
    fields = wire.fields(message, flat.size, BLOCK)
    if not bool(wire.write(flat, BLOCK, fields)):
        return None
    # Rounded up, a number near the end of the range of its own dtype would be infinite.
    largest = np.finfo(array.dtype).max / np.float64(1 + wire.u)
    if wire.is_scaled and bool(fields.scales.max() > largest):
        return None
    return message


def narrowed(
    message: Sequence[Tensor], specs: Signature, wire: WireDtype
) -> tuple[list[Any], Signature]:
    """Returns the arrays that travel for a message, and its signature with dtypes.

    Args:
        message: The tensors of the message.
        specs: The signature of the message, without dtypes on the wire.
        wire: The dtype on the wire.

    Raises:
        TypeError: If an array is complex, or wider than float32.
    """
    arrays, found = [], []
    for (array, *_), spec in zip(message, specs):
        if array is not None:
            array = spec.in_memory(array)
            narrow = encoded(array, wire)
            arrays.append(array if narrow is None else narrow)
            name = "" if narrow is None else wire.name
            spec = spec if spec.wire == name else spec._replace(wire=name)
        found.append(spec)
    return arrays, tuple(found)


def on_wire(spec: TensorSpec) -> tuple[tuple[int, ...], np.dtype]:
    """Returns the shape and the dtype of the buffer of an array's message."""
    if not spec.wire:
        return spec.shape_in_memory, np.dtype(spec.dtype)
    n_bytes = WIRE[spec.wire].n_bytes(math.prod(spec.shape), BLOCK)
    return (n_bytes,), np.dtype(np.uint8)


def n_bytes(spec: TensorSpec) -> int:
    """Returns the bytes of an array's message."""
    shape, dtype = on_wire(spec)
    return math.prod(shape) * dtype.itemsize


def decoded(message: Any, spec: TensorSpec) -> Any:
    """Returns the array of a message from :func:`encoded`, in the order of the wire."""
    flat = WIRE[spec.wire].decode(message, math.prod(spec.shape), BLOCK)
    return flat.astype(spec.dtype, copy=False).reshape(spec.shape_in_memory)


def arrived(array: Any, dtype: str) -> Any:
    """Returns an array as it arrives from a sender that narrows it.

    Args:
        array: NumPy or CuPy array, in any order of memory.
        dtype: Name of the dtype on the wire.

    Raises:
        TypeError: If the array is complex, or wider than float32.

    Example:
        >>> arrived(np.array([1, -2, 4], np.float32), "int4")
        array([ 1.1428572, -2.2857144,  4.       ], dtype=float32)
    """
    (spec,) = signature([Tensor(array)])
    message = None if dtype == "fp32" else encoded(spec.in_memory(array), WIRE[dtype])
    if message is None:
        return array
    return spec.received(decoded(message, spec._replace(wire=dtype)))
