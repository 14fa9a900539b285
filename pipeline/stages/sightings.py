"""The number of samples that a loss counts, observed while it computes.

A lambda around ``F.softmax_cross_entropy`` leaves out the samples that this function
leaves out. So a hook observes the functions that a loss calls::

    lossfun:  y --- reshape --- SoftmaxCrossEntropy --- * 0.5 --- loss
                                 5 of 8 labels          scale

If the loss is a mean over the labels that one such function counts, the number is
known. Otherwise it can only be seen whether microbatches differ in more than their
number of samples, see :func:`differ`.
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
    """Number of labels that a function counts; on a GPU, ``count`` is an array."""

    count: Any
    total: int
    n_rows: int


class _Elements(NamedTuple):
    """Number of elements that a mean is over."""

    total: int


class _Summed(NamedTuple):
    """Number of elements that a sum is over."""

    total: int


class _Scale(NamedTuple):
    """A factor or a divisor; it may be an array of one number."""

    value: Any


class _Apart(NamedTuple):
    """Single rows are extracted, as in a loop over the samples."""

    n_rows: int


def _labels(t: Any, ignored: int | None) -> _Labels:
    count = t.size if ignored is None else (t != ignored).sum()
    # Python's int, so that the number counts as known (CountedMean.counts_nothing).
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
    """Traces of counting in one microbatch.

    Attributes:
        n_samples (int): Number of samples in the microbatch.
        is_loop (bool): Whether samples are extracted one by one, so that other traces
            may be of single samples.
        whole: Counts of functions that got labels of all samples: pairs of counted and
            total.
        steps: Such pairs for functions that got a part of each sample's labels, such as
            one step of a sequence.
        totals: Number of labels that each function got, counted or not.
        means: Number of elements that each mean is over.
        scales: Factors and divisors in the loss.
        sums: Number of elements that each sum is over.
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
        """Number of samples that count; on a GPU, it may be an array."""
        if self.is_loop or not self.whole:
            return self.n_samples
        count, total = self.whole[0]
        return count if total == self.n_samples else self.n_samples * count / total

    @property
    def shows_nothing(self) -> bool:
        """Whether no function was seen that reveals what counts."""
        # A sum does not reveal what it is divided by.
        return not (self.is_loop or any(self._replace(sums=())[2:]))


class Watch(chainer.FunctionHook):
    """Observes the functions that a loss or an accuracy calls.

    Args:
        ignores: Types of functions on which the value does not depend.
    """

    name = "divisible.Watch"
    # The hook changes no array that it sees, so prepared weights need no checks.
    only_reads = True

    def __init__(self, ignores: Collection[type] = ()) -> None:
        self._ignores = ignores
        self._called: set[int] = set()
        self._seen: list[tuple[Any, Any]] = []
        self._last: Any = None

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Records a call of a function."""
        self._called.add(id(function))
        # Old-style functions are wrapped in an adapter.
        inner = getattr(function, "function", None) or function
        rule = _RULES.get(type(inner))
        seen = None if rule is None else rule(inner, in_data)
        if seen is None:
            return
        self._last = seen.count if isinstance(seen, _Labels) else self._last
        if type(inner) not in self._ignores:
            # Without a graph, no function is looked up later, and it may be freed.
            kept = function if chainer.config.enable_backprop else None
            self._seen.append((kept, seen))

    def count_last(self) -> Any:
        """Returns the number of labels counted last; ``None`` if none were counted."""
        return self._last

    def sighting(self, value: Any, n_samples: int, sizes: Collection[int]) -> Sighting:
        """Returns the traces of the functions that a value depends on.

        Args:
            value: The loss. With a graph, this tells its functions from those of
                metrics beside it.
            n_samples (int): Number of samples in the microbatch.
            sizes: Number of elements in each target of the microbatch.
        """
        behind = set(self._behind(value))
        seen = [s for function, s in self._seen if not behind or id(function) in behind]
        labels = [s for s in seen if isinstance(s, _Labels)]
        # A single function got labels of all samples, even if not all labels of each.
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
    """Returns whether microbatches differ in a way that weights cannot make up for.

    Returns ``False`` for a loop over the samples, whose single calls are not known.

    Args:
        sightings: Traces of each microbatch.
        sizes: Number of elements in each output and target, of any microbatch.

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
        # Weights from the first function are right for it, and for those that vary
        # alike.
        unlike = ~np.isclose(whole, whole[:, :1]).all(axis=0)
        varies = _varies(whole)
        if (unlike & (varies | varies[0])).any():
            return True
        # They are wrong for a mean or a sum over all samples beside it.
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
    """Returns whether a mean is over the elements of samples, outputs or targets.

    Other means are over parameters.
    """
    each = {n / s.n_samples for n, s in zip(column, sightings)}
    known = all(n in (*sizes, s.n_samples) for n, s in zip(column, sightings))
    return known and len(each) == 1


def _table(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    """Returns a row for each microbatch; no columns if the rows differ in length."""
    if len(set(map(len, rows))) != 1:
        return np.empty((len(rows), 0))
    return np.array([list(map(float, row)) for row in rows])


def _fractions(rows: Sequence[Sequence[tuple[Any, int]]]) -> np.ndarray:
    return _table([[float(n) / max(1, total) for n, total in row] for row in rows])


def _varies(table: np.ndarray) -> np.ndarray:
    """Returns for each column whether its values differ."""
    return ~np.isclose(table, table[:1], rtol=1e-5, atol=0).all(axis=0)


def _is_no_share(table: np.ndarray, samples: np.ndarray) -> bool:
    """Returns whether a column neither is constant nor follows the sample counts."""
    n = samples[:, np.newaxis]
    return bool((_varies(table) & _varies(table * n) & _varies(table / n)).any())
