"""Minibatches: arrays with equally many samples, cut into microbatches and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from divisible.communication.signatures import Tensor, Tensors, check_plain


def as_arrays(name: str, value: Any, where: str = "") -> tuple:
    """Returns a user's input as a tuple of arrays with equally many samples.

    Args:
        name (str): Name of the input in messages, ``'x'`` or ``'t'``.
        value (array or tuple of arrays): The user's input.
        where (str): Words for messages on the reader, such as ``' on rank 0'``.

    Raises:
        TypeError: If the input is missing, is not made of arrays, or has arrays of a
            subclass.
        ValueError: If there are no arrays, no samples, or not equally many.

    Example:
        >>> import numpy as np
        >>> [array.shape for array in as_arrays("x", np.ones((6, 4)))]
        [(6, 4)]
    """
    if value is None:
        raise TypeError(f"{name} is None{where}")
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    if not arrays:
        raise ValueError(
            f"{name} is an empty {type(value).__name__}{where}: it needs at least one"
            f" array"
        )
    for array in arrays:
        if not isinstance(array, chainer.get_array_types()):
            given = type(array).__name__
            if array is not value:
                given = f"a {type(value).__name__} with {given}"
            raise TypeError(
                f"{name} must be an array or a tuple of arrays, not {given}"
            )
        if type(array) is not np.ndarray:
            check_plain(array, f"{name} is")
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the arrays of {name} have {len(arrays[0])} and {len(array)} samples"
            )
    return tuple(arrays)


def split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis. The first microbatches have one more sample.

    Example:
        >>> [len(part) for part, in split([np.ones((5, 4))], n_microbatches=3)]
        [2, 2, 1]
    """
    return _cut(arrays, _sizes(len(arrays[0]), n_microbatches))


def _cut(arrays: Sequence[Any], sizes: Sequence[int]) -> list[tuple]:
    parts, start = [], 0
    for size in sizes:
        part, end = [], start + size
        for array in arrays:
            part.append(array[start:end])
        parts.append(tuple(part))
        start = end
    return parts


def as_tensors(arrays: Sequence[Any], device: chainer.backend.Device) -> Tensors:
    """Returns a microbatch as a message to the first stage; empty without samples."""
    if len(arrays[0]) == 0:
        return ()
    tensors = []
    for array in arrays:
        tensors.append(Tensor(device.send(array)))
    return tuple(tensors)


def join(
    outputs: Sequence[Tensors],
    sizes: Sequence[int] | None = None,
    axis: int | Sequence[int] = 0,
) -> tuple[np.ndarray, ...]:
    """Joins the outputs of all microbatches on the host.

    Args:
        outputs: Outputs of each microbatch; empty for one without samples.
        sizes: Number of samples of each; by default those of the first output.
        axis (int or sequence of ints): Axis of the samples; see :func:`concatenate`.

    Raises:
        TypeError, ValueError: For the reasons of :func:`concatenate`.
    """
    host = chainer.get_device("@numpy")
    parts = [tuple(host.send(y) for y, *_ in tensors) for tensors in outputs if tensors]
    if sizes is None:
        sizes = [len(first) if first.ndim else 1 for first, *_ in parts]
    return concatenate(parts, list(filter(None, sizes)), axis)


def concatenate(
    outputs: Sequence[Sequence[Any]],
    sizes: Sequence[int],
    axis: int | Sequence[int] = 0,
) -> tuple:
    """Joins a model's outputs for several parts of the samples.

    Args:
        outputs: For each part a tuple of arrays.
        sizes: The number of samples of each part.
        axis (int or sequence of ints): Axis along which an output has its samples; one
            for all outputs, or one for each.

    Raises:
        TypeError: If an output is a scalar.
        ValueError: If the length of that axis does not suit the number of samples, or
            the shapes differ along another axis.

    Example:
        >>> parts = [(np.ones((2, n, 5)),) for n in (4, 3)]
        >>> concatenate(parts, sizes=[4, 3], axis=1)[0].shape
        (2, 7, 5)
    """
    numbers = {len(part) for part in outputs}
    axes = [axis] * max(numbers) if isinstance(axis, int) else list(axis)
    if numbers != {len(axes)}:
        raise ValueError(
            f"predict is to join {len(axes)} outputs along the axes {axes}, but the"
            f" last layer returned {' or '.join(map(str, sorted(numbers)))}"
        )
    columns = zip(*outputs)
    return tuple(_joined(i, ys, sizes, axes[i]) for i, ys in enumerate(columns))


def of_no_samples(outputs: Sequence[Any], axis: int | Sequence[int] = 0) -> tuple:
    """Returns a model's outputs for no samples, on the host.

    Args:
        outputs: Arrays for some samples.
        axis (int or sequence of ints): Axis of the samples; see :func:`concatenate`.

    Raises:
        ValueError: If an output has no such axis.

    Example:
        >>> of_no_samples((np.ones((2, 7, 5)),), axis=1)[0].shape
        (2, 0, 5)
    """
    axes = [axis] * len(outputs) if isinstance(axis, int) else axis
    emptied = []
    for number, (y, its) in enumerate(zip(outputs, axes)):
        if not -y.ndim <= its < y.ndim:
            raise ValueError(
                f"output {number} of the last layer has the shape {y.shape}, so it does"
                f" not have the samples along axis {its}: give an axis below {y.ndim}"
            )
        shape = list(y.shape)
        shape[its] = 0
        emptied.append(np.empty(shape, y.dtype))
    return tuple(emptied)


def _joined(number: int, ys: Sequence[Any], sizes: Sequence[int], axis: int) -> Any:
    first = ys[0]
    if any(y.ndim == 0 for y in ys):
        raise TypeError(
            f"the last layer returned a scalar for a microbatch, as output {number}:"
            f" to predict, it must return samples along the first axis. A term of the"
            f" loss that an inner layer gives may be a value of each sample"
        )
    if len(ys) == 1:
        return first
    for y, n in zip(ys[1:], sizes[1:]):
        if not _fits(y, n, first, sizes[0], axis):
            break
    else:
        return chainer.backend.get_array_module(first).concatenate(ys, axis)
    candidates = [i for i in range(y.ndim) if _fits(y, n, first, sizes[0], i)]
    cure = "return them along one axis, and the rest in equal shapes"
    if candidates:
        cure = f"if they are along axis {candidates[0]}, use predict(..., axis=...)"
    raise ValueError(
        f"output {number} of the last layer has the shape {first.shape} for"
        f" {sizes[0]} samples and {y.shape} for {n}, so it does not have the samples"
        f" along axis {axis}: {cure}"
    )


def _fits(y: Any, n: int, first: Any, n_first: int, axis: int) -> bool:
    """Returns whether two outputs differ along one axis only, like their samples."""
    if y.ndim != first.ndim or not -y.ndim <= axis < y.ndim:
        return False
    # A sample may have several rows, one after the other.
    length, expected = y.shape[axis], first.shape[axis]
    is_share = length % n == 0 and length * n_first == expected * n
    rest = [np.delete(each.shape, axis).tolist() for each in (y, first)]
    return is_share and rest[0] == rest[1]


def split_unequally(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis, so that not all parts have equally many samples.

    Outputs with a wrong axis are found then: its length does not follow the samples.

    Example:
        >>> [len(part) for part, in split_unequally([np.ones((6, 4))], 3)]
        [3, 2, 1]
        >>> [len(part) for part, in split_unequally([np.ones((2, 4))], 3)]
        [2, 0, 0]
    """
    return _cut(arrays, unequal_sizes(len(arrays[0]), n_microbatches))


def unequal_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the number of samples of each part of :func:`split_unequally`."""
    sizes = _sizes(n_samples, n_microbatches)
    last = min(n_samples, n_microbatches) - 1
    if last and sizes[0] == sizes[last]:
        sizes[0] += 1
        sizes[last] -= 1
    return sizes


def microbatch_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the number of samples of each microbatch of a pipeline's minibatch.

    Raises:
        ValueError: If there are more microbatches than samples, or none.

    Example:
        >>> microbatch_sizes(10, 4)
        [3, 3, 2, 2]
    """
    if not 1 <= n_microbatches <= n_samples:
        raise ValueError(
            f"{n_samples} samples cannot be cut into {n_microbatches} microbatches"
        )
    return _sizes(n_samples, n_microbatches)


def value_and_count(returned: Any) -> tuple[Any, Any]:
    """Returns a loss, and the number of samples of which it is the mean, if given.

    Args:
        returned: The result of a loss function, the loss alone or ``(loss, n)``.

    Example:
        >>> value_and_count((0.5, 3))
        (0.5, 3)
        >>> value_and_count(0.5)
        (0.5, None)
    """
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    return returned, None


def _sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns numbers of samples that differ by one at most, the larger ones first."""
    each, extra = divmod(n_samples, n_microbatches)
    return [each + (i < extra) for i in range(n_microbatches)]
