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

#: Where an array has its units, by the parameter's name.
AXES = {"W": 0, "V": 1, "b": 0}

Arrays = Mapping[Any, Any]


def by_unit(name: str, array: Any) -> Any:
    """Returns a view of shape (units, others)."""
    first = array.T if AXES[name] == 1 else array
    return first if first.ndim == 2 else first[:, np.newaxis]


def shape_of(name: str, array: Any, n_units: int) -> tuple[int, ...]:
    """Returns the shape that an array has with another number of units."""
    shape = list(array.shape)
    shape[AXES[name]] = n_units
    return tuple(shape)


class Block:
    """Arrays of the same units, of which some travel together.

    Args:
        names: The parameter that each array is of, or belongs to, in an order that is
            the same on all ranks.
        arrays: Of one dtype, on whichever device.
        first: The unit that they begin with.
    """

    def __init__(self, names: list[str], arrays: list[Any], first: int) -> None:
        self._views = [by_unit(n, a) for n, a in zip(names, arrays)]
        self._first = first
        self.dtype = arrays[0].dtype
        #: Elements of a unit.
        self.width = sum(view.shape[1] for view in self._views)

    def empty(self, start: int, stop: int) -> np.ndarray:
        """Returns a block of units without values, in the host's memory."""
        return np.empty((stop - start, self.width), self.dtype)

    def pack(self, start: int, stop: int) -> np.ndarray:
        """Returns the values of units."""
        block, at = self.empty(start, stop), 0
        for view in self._views:
            end = at + view.shape[1]
            rows = view[start - self._first : stop - self._first]
            block[:, at:end] = cuda.to_cpu(rows)
            at = end
        return block

    def unpack(self, block: np.ndarray, start: int, stop: int) -> None:
        """Writes the values of units."""
        at = 0
        for view in self._views:
            end = at + view.shape[1]
            xp = cuda.get_array_module(view)
            view[start - self._first : stop - self._first] = xp.asarray(
                block[:, at:end]
            )
            at = end

    def copy(self, other: Block, start: int, stop: int) -> None:
        """Takes the values of units from other arrays of this rank."""
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

    They are normal, of the variance of Chainer's own for linear layers: one over the
    number of inputs.

    Args:
        seed: From 0 to 2**32 - 1.
        units: First unit, and the one behind the last.
        n: Inputs of the network.
        m: All hidden units.
        l: Outputs.
        dtype: Of the weights.

    Returns:
        ``'W'``, ``'V'`` and ``'b'`` of these units; biases are 0.
    """
    count = units[1] - units[0]
    w, v = np.empty((count, n), dtype), np.empty((l, count), dtype)
    for i, unit in enumerate(range(*units)):
        drawn = np.random.RandomState([seed, unit]).standard_normal(n + l)
        w[i], v[:, i] = drawn[:n] / np.sqrt(n), drawn[n:] / np.sqrt(m)
    return {"W": w, "V": v, "b": np.zeros(count, dtype)}
