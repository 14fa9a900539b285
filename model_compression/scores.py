"""Scores of groups of weights, and the groups with the lowest.

A weight is treated as a matrix with a row for each output. Its groups are elements,
blocks, or rows::

    element    . . . .     block (2, 2)    a a b b     row, channel    a a a a
               . . . .                     a a b b                     b b b b
               . . . .                     c c d d                     c c c c

Scores are computed in host memory, in float64, so that they are the same on every
processor that has the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Union

import numpy as np

Granularity = Union[str, "tuple[int, int]"]

METHODS = ("magnitude", "l1", "l2", "taylor")
#: Granularities in which a group is an output.
ROWS = ("row", "channel")
_NAMES = ("element", *ROWS)


def check_granularity(granularity: Any, rule: str) -> Granularity:
    """Returns a granularity; a block's as a pair of numbers.

    Raises:
        ValueError: If there is no such granularity.
    """
    if isinstance(granularity, str) and granularity in _NAMES:
        return granularity
    if isinstance(granularity, (tuple, list)) and len(granularity) == 2:
        numbers = [n for n in granularity if isinstance(n, Integral)]
        numbers = [n for n in numbers if not isinstance(n, bool)]
        if len(numbers) == 2 and min(numbers) >= 1:
            return int(numbers[0]), int(numbers[1])
    raise ValueError(
        f"{rule}: granularity must be one of {', '.join(_NAMES)} or the sides of a"
        f" block, as (4, 4), not {granularity!r}"
    )


def group_shape(shape: Sequence[int], granularity: Granularity) -> tuple[int, ...]:
    """Returns the numbers of groups of a weight, along its rows and its columns.

    Example:
        >>> group_shape((8, 3, 3, 3), "element"), group_shape((8, 3, 3, 3), (2, 10))
        ((8, 27), (4, 3))
        >>> group_shape((8, 3, 3, 3), "row")
        (8, 1)
    """
    rows, columns = shape[0], int(np.prod(shape[1:], dtype=np.int64))
    height, width = _sides((rows, columns), granularity)
    return -(-rows // height), -(-columns // width)


def _sides(matrix: tuple[int, int], granularity: Granularity) -> tuple[int, int]:
    if granularity == "element":
        return 1, 1
    if granularity in ROWS:
        return 1, max(1, matrix[1])
    return granularity


def sums(values: np.ndarray, granularity: Granularity) -> np.ndarray:
    """Returns the sums over groups, of shape :func:`group_shape`, in float64.

    Args:
        values: Values, of the shape of the weight.
        granularity: Shape of a group.
    """
    matrix = values.reshape(len(values), -1).astype(np.float64)
    height, width = _sides(matrix.shape, granularity)
    if (height, width) == (1, 1):
        return matrix
    for axis, side in enumerate((height, width)):
        # The last block may be smaller.
        starts = np.arange(0, matrix.shape[axis], side)
        matrix = np.add.reduceat(matrix, starts, axis=axis)
    return matrix


def score(method: str, weight: np.ndarray, granularity: Granularity) -> np.ndarray:
    """Returns the scores of a weight's groups by the weight's values.

    Args:
        method: ``'magnitude'``, ``'l1'`` or ``'l2'``.
        weight: Weight, in host memory, of two or more dimensions.
        granularity: Shape of a group.

    Example:
        >>> score("l2", np.array([[3.0, 4.0], [0.0, 1.0]]), "row").ravel().tolist()
        [5.0, 1.0]
    """
    if method == "l2":
        return np.sqrt(sums(np.square(weight, dtype=np.float64), granularity))
    found = sums(np.abs(weight), granularity)
    if method == "magnitude":
        found /= sums(np.ones(weight.shape, np.float32), granularity)
    return found


def lowest(scores: np.ndarray, pruned: np.ndarray, degree: float) -> np.ndarray:
    """Returns which groups to prune in addition to those already pruned.

    Among equal scores the first group goes first. One group remains for any degree,
    even if a weight has few groups: nothing passes a weight of zeros, and no gradient.

    Args:
        scores: Score of each group.
        pruned: Whether each group is pruned already, of the shape of ``scores``.
        degree: Part of all groups that is to be pruned, from 0 to 1.

    Returns:
        Boolean, of the shape of ``scores``, ``False`` where ``pruned`` is.

    Example:
        >>> lowest(np.array([3.0, 1.0, 2.0, 0.0]), np.array([False] * 4), 0.5)
        array([False,  True, False,  True])
    """
    wanted = min(int(degree * scores.size + 0.5), scores.size - 1)
    more = wanted - int(pruned.sum())
    found = np.zeros(scores.size, bool)
    if more > 0:
        order = np.argsort(scores, axis=None, kind="stable")
        order = order[~pruned.ravel()[order]]
        found[order[:more]] = True
    return found.reshape(scores.shape)


def spread(
    groups: np.ndarray, shape: Sequence[int], granularity: Granularity
) -> np.ndarray:
    """Returns for each element of a weight the value of its group.

    Args:
        groups: Values of the groups, of shape :func:`group_shape`.
        shape: Shape of the weight.
        granularity: Shape of a group.

    Example:
        >>> spread(np.array([[True], [False]]), (2, 3), "row").astype(int).tolist()
        [[1, 1, 1], [0, 0, 0]]
    """
    rows, columns = shape[0], int(np.prod(shape[1:], dtype=np.int64))
    height, width = _sides((rows, columns), granularity)
    whole = groups.repeat(height, axis=0)[:rows].repeat(width, axis=1)[:, :columns]
    return whole.reshape(shape)
