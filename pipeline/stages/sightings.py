"""The samples that a loss is seen to count while it computes, without being asked.

A lambda around ``F.softmax_cross_entropy`` leaves out the samples that that leaves
out. So the functions are watched that a loss consists of::

    lossfun:  y --- reshape --- SoftmaxCrossEntropy --- * 0.5 --- loss
                                 5 of 8 labels          scale

Where the loss is a mean over the labels that one such function counts, the number is
known. Otherwise it can only be seen whether microbatches differ by more than their
samples, see :func:`differ`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.functions.array.get_item import GetItem
from chainer.functions.array.separate import Separate
from chainer.functions.array.split_axis import SplitAxis
from chainer.functions.evaluation.accuracy import Accuracy
from chainer.functions.evaluation.binary_accuracy import BinaryAccuracy
from chainer.functions.loss.mean_absolute_error import MeanAbsoluteError
from chainer.functions.loss.mean_squared_error import MeanSquaredError
from chainer.functions.loss.sigmoid_cross_entropy import SigmoidCrossEntropy
from chainer.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from chainer.functions.math.average import Mean
from chainer.functions.math.basic_math import Div, MulConstant
from chainer.functions.math.sum import Sum


class _Labels(NamedTuple):
    """How many of its labels a function counts; on a GPU, ``count`` is an array."""

    count: Any
    total: int
    n_rows: int


class _Elements(NamedTuple):
    """How many elements a mean is over."""

    total: int


class _Summed(NamedTuple):
    """How many elements a sum is over."""

    total: int


class _Scale(NamedTuple):
    """A factor or a divisor; it may be an array of one number."""

    value: Any


class _Apart(NamedTuple):
    """Single rows are taken, as by a loop over the samples."""

    n_rows: int


def _labels(t: Any, ignored: int | None) -> _Labels:
    count = t.size if ignored is None else (t != ignored).sum()
    # NumPy's integers have the numbers of other types as neighbours.
    count = int(count) if isinstance(count, np.generic) else count
    return _Labels(count, t.size, len(t) if t.ndim else 1)


def _softmax(function: Any, data: Sequence[Any]) -> _Labels | None:
    if function.reduce != "mean":
        return None
    leaves_out = function.normalize and data[1].dtype.kind == "i"
    return _labels(data[1], function.ignore_label if leaves_out else None)


def _sigmoid(function: Any, data: Sequence[Any]) -> _Labels | None:
    if function.reduce != "mean":
        return None
    return _labels(data[1], function.ignore_label if function.normalize else None)


def _reduces_all(function: Any, data: Sequence[Any]) -> bool:
    axes = getattr(function, "axis", None)
    return axes is None or len(axes) == data[0].ndim


def _mean(function: Any, data: Sequence[Any]) -> _Elements | None:
    return _Elements(data[0].size) if _reduces_all(function, data) else None


def _sum(function: Any, data: Sequence[Any]) -> _Summed | None:
    return _Summed(data[0].size) if _reduces_all(function, data) else None


def _factor(function: Any, data: Sequence[Any]) -> _Scale | None:
    return _Scale(function.value) if np.isscalar(function.value) else None


def _divisor(function: Any, data: Sequence[Any]) -> _Scale | None:
    return _Scale(data[1].reshape(())) if data[1].size == 1 else None


def _item(function: Any, data: Sequence[Any]) -> _Apart | None:
    first = function.slices[0] if function.slices else None
    is_loop = isinstance(first, (int, slice)) and first != slice(None)
    return _Apart(len(data[0])) if is_loop else None


def _split(function: Any, data: Sequence[Any]) -> _Apart | None:
    return _Apart(len(data[0])) if function.axis in (0, -data[0].ndim) else None


_RULES = {
    Accuracy: lambda function, data: _labels(data[1], function.ignore_label),
    BinaryAccuracy: lambda function, data: _labels(data[1], function.ignore_label),
    Div: _divisor,
    GetItem: _item,
    Mean: _mean,
    MeanAbsoluteError: _mean,
    MeanSquaredError: _mean,
    MulConstant: _factor,
    Separate: _split,
    SigmoidCrossEntropy: _sigmoid,
    SoftmaxCrossEntropy: _softmax,
    SplitAxis: _split,
    Sum: _sum,
}


class Sighting(NamedTuple):
    """The traces of counting that were seen in one microbatch.

    Attributes:
        n_samples (int): Its samples.
        is_loop (bool): Whether samples are taken one by one, so that what is seen may
            be of single ones.
        whole: Counts of functions of labels of all samples: pairs of counted and total.
        steps: The same of functions of a part of each sample's labels, such as one step
            of a sequence.
        totals: How many labels functions have, counted or not.
        means: Over how many elements means are.
        scales: What is multiplied or divided by.
        sums: Over how many elements sums are.
    """

    n_samples: int
    is_loop: bool
    whole: Sequence[tuple[Any, int]]
    steps: Sequence[tuple[Any, int]]
    totals: Sequence[int]
    means: Sequence[int]
    scales: Sequence[Any]
    sums: Sequence[int] = ()

    @property
    def n_counted(self) -> Any:
        """How many of the samples count; on a GPU, it may be an array."""
        if self.is_loop or not self.whole:
            return self.n_samples
        count, total = self.whole[0]
        return count if total == self.n_samples else self.n_samples * count / total

    @property
    def shows_nothing(self) -> bool:
        """Whether no function was seen that tells anything."""
        # A sum tells nothing of what it is divided by.
        return not (self.is_loop or any(self._replace(sums=())[2:]))


class Watch(chainer.FunctionHook):
    """Watches the functions that a loss or an accuracy calls.

    Args:
        ignores: Types of functions on which the value does not depend.
    """

    name = "divisible.Watch"

    def __init__(self, ignores: Collection[type] = ()) -> None:
        self._ignores = ignores
        self._called: set[int] = set()
        self._seen: list[tuple[Any, Any]] = []
        self._last: Any = None

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Notes a call."""
        self._called.add(id(function))
        # Old-style functions come in an adapter.
        inner = getattr(function, "function", None) or function
        rule = _RULES.get(type(inner))
        seen = None if rule is None else rule(inner, in_data)
        if seen is None:
            return
        self._last = seen.count if isinstance(seen, _Labels) else self._last
        if type(inner) not in self._ignores:
            # Without a graph nothing is looked up, and it may be freed.
            kept = function if chainer.config.enable_backprop else None
            self._seen.append((kept, seen))

    def count_last(self) -> Any:
        """How many labels the last function counted that has such; else ``None``."""
        return self._last

    def sighting(self, value: Any, n_samples: int, sizes: Collection[int]) -> Sighting:
        """Returns what was seen, as far as a value depends on it.

        Args:
            value: What the loss returned; with a graph, metrics beside it are told
                from what it consists of.
            n_samples (int): Of the microbatch.
            sizes: How many elements its targets have.
        """
        behind = set(self._behind(value))
        seen = [s for function, s in self._seen if not behind or id(function) in behind]
        labels = [s for s in seen if isinstance(s, _Labels)]
        # One alone is of all samples, even if it is not of all labels of each.
        is_only = len(labels) == 1 and labels[0].total % n_samples == 0
        whole = [s for s in labels if is_only or s.total in sizes]
        parts = [s for s in labels if s not in whole]
        return Sighting(
            n_samples,
            any(isinstance(s, _Apart) and s.n_rows == n_samples for s in seen),
            [(s.count, s.total) for s in whole],
            [(s.count, s.total) for s in parts if s.n_rows == n_samples],
            [s.total for s in labels],
            [s.total for s in seen if isinstance(s, _Elements)],
            [s.value for s in seen if isinstance(s, _Scale)],
            [s.total for s in seen if isinstance(s, _Summed)],
        )

    def _behind(self, value: Any) -> Iterator[int]:
        """Yields the identities of the functions that a value comes from."""
        waiting = [getattr(value, "creator_node", None)]
        found: set[int] = set()
        while waiting:
            function = waiting.pop()
            if id(function) in found or id(function) not in self._called:
                continue
            found.add(id(function))
            yield id(function)
            waiting += [x.creator_node for x in function.inputs]


def differ(sightings: Sequence[Sighting], sizes: Collection[int]) -> bool:
    """Says whether microbatches count in a way that no weights make up for.

    Of a loop over the samples nothing is known, and so nothing is said.

    Args:
        sightings: What was seen, by microbatch.
        sizes: How many elements each output and target has, of any microbatch.

    Example:
        >>> def half_mean(n):
        ...     return Sighting(4, False, [], [], [], [], [0.5, 1 / n])
        >>> differ([half_mean(4), half_mean(4)], set())
        False
        >>> differ([half_mean(4), half_mean(3)], set())
        True
    """
    if any(s.is_loop for s in sightings) or all(s == sightings[0] for s in sightings):
        return False
    samples = np.array([s.n_samples for s in sightings])
    whole = _fractions([s.whole for s in sightings])
    if whole.size:
        # Weights by the first one's are right for it, and for what is like it.
        unlike = ~np.isclose(whole, whole[:, :1]).all(axis=0)
        varies = _varies(whole)
        if (unlike & (varies | varies[0])).any():
            return True
        # Nor for a mean, or a sum, over all samples beside it.
        columns = zip(*((*s.means, *s.sums) for s in sightings))
        if varies[0] and any(_is_over_all(c, sightings, sizes) for c in columns):
            return True
    return (
        bool(_varies(_fractions([s.steps for s in sightings])).any())
        or _is_no_share(_table([s.totals for s in sightings]), samples)
        or _is_no_share(_table([s.means for s in sightings]), samples)
        or _is_no_share(_table([s.scales for s in sightings]), samples)
    )


def _is_over_all(
    column: Sequence[int], sightings: Sequence[Sighting], sizes: Collection[int]
) -> bool:
    """Whether a mean is over as many elements as there are samples, outputs, targets.

    Others are of parameters.
    """
    each = {n / s.n_samples for n, s in zip(column, sightings)}
    known = all(n in (*sizes, s.n_samples) for n, s in zip(column, sightings))
    return known and len(each) == 1


def _table(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    """Returns a row for each microbatch; nothing if they are of unequal lengths."""
    if len(set(map(len, rows))) != 1:
        return np.empty((len(rows), 0))
    return np.array([list(map(float, row)) for row in rows])


def _fractions(rows: Sequence[Sequence[tuple[Any, int]]]) -> np.ndarray:
    return _table([[float(n) / max(1, total) for n, total in row] for row in rows])


def _varies(table: np.ndarray) -> np.ndarray:
    """Says for each column whether its values differ."""
    return ~np.isclose(table, table[:1], rtol=1e-5, atol=0).all(axis=0)


def _is_no_share(table: np.ndarray, samples: np.ndarray) -> bool:
    """Whether a column is neither constant nor goes with the number of samples."""
    n = samples[:, np.newaxis]
    return bool((_varies(table) & _varies(table * n) & _varies(table / n)).any())
