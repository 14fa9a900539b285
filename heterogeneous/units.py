"""Hidden units: their weights, as rows of blocks that travel.

::

    W   (units, n)   a unit is a row
    V   (l, units)   a column                 block of units a to b - 1:
    b   (units,)     a number                 b - a rows of  | W | V | b |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from chainer.backends import cuda

#: Axis of the units in an array, by the parameter's name.
AXES = {"W": 0, "V": 1, "b": 0}

Arrays = Mapping[Any, Any]


def by_unit(name: str, array: Any) -> Any:
    """Returns a view of shape (units, elements of a unit)."""
    first = array.T if AXES[name] == 1 else array
    return first if first.ndim == 2 else first[:, np.newaxis]


def shape_of(name: str, array: Any, n_units: int) -> tuple[int, ...]:
    """Returns the shape of an array for another number of units."""
    shape = list(array.shape)
    shape[AXES[name]] = n_units
    return tuple(shape)


class Block:
    """Arrays of the same units, parts of which travel together.

    Args:
        names: Name of the parameter of each array, or of each optimizer state, in the
            same order on all ranks.
        arrays: Arrays of one dtype, on any device.
        first: First unit in the arrays.
    """

    def __init__(self, names: list[str], arrays: list[Any], first: int) -> None:
        self._views = [by_unit(n, a) for n, a in zip(names, arrays)]
        self._first = first
        self.dtype = arrays[0].dtype
        #: Number of elements of a unit.
        self.width = sum(view.shape[1] for view in self._views)

    def empty(self, start: int, stop: int) -> np.ndarray:
        """Returns a block of units without values, in the host's memory."""
        return np.empty((stop - start, self.width), self.dtype)

    def pack(self, start: int, stop: int) -> np.ndarray:
        """Returns the values of some units."""
        block, at = self.empty(start, stop), 0
        for view in self._views:
            end = at + view.shape[1]
            rows = view[start - self._first : stop - self._first]
            block[:, at:end] = cuda.to_cpu(rows)
            at = end
        return block

    def unpack(self, block: np.ndarray, start: int, stop: int) -> None:
        """Writes the values of some units."""
        at = 0
        for view in self._views:
            end = at + view.shape[1]
            xp = cuda.get_array_module(view)
            view[start - self._first : stop - self._first] = xp.asarray(
                block[:, at:end]
            )
            at = end

    def copy(self, other: Block, start: int, stop: int) -> None:
        """Copies the values of units from other arrays of this rank."""
        for mine, theirs in zip(self._views, other._views):
            mine[start - self._first : stop - self._first] = theirs[
                start - other._first : stop - other._first
            ]


def initial(
    seed: int,
    units: tuple[int, int],
    n: int,
    m: int,
    l: int,  # noqa: E741
    dtype: Any,
) -> dict[str, np.ndarray]:
    """Draws the weights of some units, which depend on the seed and the unit alone.

    The weights are normal, of the variance of Chainer's own for linear layers: one over
    the number of inputs.

    Args:
        seed: Seed, from 0 to 2**32 - 1.
        units: First unit, and the one after the last.
        n: Inputs of the network.
        m: Number of all hidden units.
        l: Outputs.
        dtype: Dtype of the weights.

    Returns:
        ``'W'``, ``'V'`` and ``'b'`` of these units; biases are 0.
    """
    count = units[1] - units[0]
    w, v = np.empty((count, n), dtype), np.empty((l, count), dtype)
    for i, unit in enumerate(range(*units)):
        drawn = np.random.RandomState([seed, unit]).standard_normal(n + l)
        w[i], v[:, i] = drawn[:n] / np.sqrt(n), drawn[n:] / np.sqrt(m)
    return {"W": w, "V": v, "b": np.zeros(count, dtype)}
