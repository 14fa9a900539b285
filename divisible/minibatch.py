"""Minibatches: as arrays with equally many samples, cut into microbatches, joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np

from divisible.communication.signatures import Tensor, Tensors, check_plain


def as_arrays(name: str, value: Any, where: str = "") -> tuple:
    """Returns what a user gave as a tuple of arrays with equally many samples.

    Args:
        name (str): What to call it in messages, ``'x'`` or ``'t'``.
        value (array or tuple of arrays): What the user gave.
        where (str): What reads it, for messages; such as ``' on rank 0'``.

    Raises:
        TypeError: If it is missing, or something else than arrays, or they are of a
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
    """Cuts along the first axis; the first microbatches get one sample more.

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
    """Returns a microbatch as a message to the first stage; empty if no samples."""
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
    """Returns the outputs of all microbatches as one, on the host.

    Args:
        outputs: Of each microbatch; none for one of no samples.
        sizes: The samples of each; by default as many as the first output has.
        axis (int or sequence of ints): As for :func:`concatenate`.

    Raises:
        TypeError, ValueError: As :func:`concatenate`.
    """
    host = chainer.get_device("@numpy")
    parts = [tuple(host.send(y) for y, _ in tensors) for tensors in outputs if tensors]
    if sizes is None:
        sizes = [len(first) if first.ndim else 1 for first, *_ in parts]
    return concatenate(parts, list(filter(None, sizes)), axis)


def concatenate(
    outputs: Sequence[Sequence[Any]],
    sizes: Sequence[int],
    axis: int | Sequence[int] = 0,
) -> tuple:
    """Returns what a model returned for several parts of the samples as one.

    Args:
        outputs: For each part a tuple of arrays.
        sizes: The number of samples of each part.
        axis (int or sequence of ints): Along which axis an output has its samples; one
            for all outputs, or one for each.

    Raises:
        TypeError: If an output is a scalar.
        ValueError: If the samples are not along that axis, because its length does not
            go with their number, or the shapes differ along another one.

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
    """Returns outputs as a model returns for no samples, on the host.

    Args:
        outputs: Arrays for some samples.
        axis (int or sequence of ints): As for :func:`concatenate`.

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
            "the last layer returned a scalar for a microbatch: to predict, it must"
            " return samples along the first axis"
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
    """Whether two outputs differ along one axis only, and there as their samples do."""
    if y.ndim != first.ndim or not -y.ndim <= axis < y.ndim:
        return False
    # Several rows of a sample may follow each other.
    length, expected = y.shape[axis], first.shape[axis]
    is_share = length % n == 0 and length * n_first == expected * n
    rest = [np.delete(each.shape, axis).tolist() for each in (y, first)]
    return is_share and rest[0] == rest[1]


def split_unequally(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis, so that not all parts have equally many samples.

    An axis of outputs that has another length than the samples shows itself then.

    Example:
        >>> [len(part) for part, in split_unequally([np.ones((6, 4))], 3)]
        [3, 2, 1]
        >>> [len(part) for part, in split_unequally([np.ones((2, 4))], 3)]
        [2, 0, 0]
    """
    return _cut(arrays, unequal_sizes(len(arrays[0]), n_microbatches))


def unequal_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the samples of each part that :func:`split_unequally` cuts."""
    sizes = _sizes(n_samples, n_microbatches)
    last = min(n_samples, n_microbatches) - 1
    if last and sizes[0] == sizes[last]:
        sizes[0] += 1
        sizes[last] -= 1
    return sizes


def microbatch_sizes(n_samples: int, n_microbatches: int) -> list[int]:
    """Returns the samples of each microbatch, as the pipeline cuts a minibatch.

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
    """Returns what a loss gives, and how many samples it says that is a mean of.

    Args:
        returned: What the function returned, the loss alone or ``(loss, n)``.

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
    """Returns numbers of samples as equal as they come, the larger ones first."""
    each, extra = divmod(n_samples, n_microbatches)
    return [each + (i < extra) for i in range(n_microbatches)]
