"""Values that layers report while they compute, over microbatches and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.weighted_means import RunningMeans, Sums


class _Counted(NamedTuple):
    """A reported mean over another number of samples than the microbatch has."""

    value: Any
    n: Any


class _Reporter(chainer.Reporter):
    """Accepts reports of links outside the stage, too.

    Attributes:
        count: Returns the number of samples that values reported now are means of;
            ``None`` for all samples of the microbatch.
    """

    count: Callable[[], Any] = staticmethod(lambda: None)

    def report(self, values: dict, observer: Any = None) -> None:
        n = self.count()
        if n is not None:
            values = {k: _Counted(chainer.as_array(v), n) for k, v in values.items()}
        if observer is None or id(observer) in self._observer_names:
            super().report(values, observer)
            return
        # Not registered for good: another link may later have the same address.
        self.add_observer(f"/{type(observer).__name__}", observer)
        super().report(values, observer)
        del self._observer_names[id(observer)]


@contextmanager
def counted_by(count: Callable[[], Any]) -> Iterator[None]:
    """Weights the values that a loss reports by the samples that it has counted.

    ``L.Classifier`` reports the loss after it has called ``lossfun``, and the accuracy
    after ``accfun``.

    Args:
        count: Returns the number of samples counted last; ``None`` for all samples.
    """
    try:
        reporter = chainer.reporter.get_current_reporter()
    except IndexError:
        reporter = None
    if not isinstance(reporter, _Reporter):
        yield
        return
    reporter.count = count
    try:
        yield
    finally:
        del reporter.count


class Reports:
    """Means of the values that one stage's layers passed to :func:`chainer.report`.

    A value that is reported for every microbatch becomes the mean over the samples of
    the minibatch, as the undivided model would have reported it.

    Args:
        observers: Pairs of a name and a link. A ``loss`` that link ``/3`` reports is
            called ``/3/loss``. A value reported without a link has just its own name.
            Links outside the stage have the name of their type.

    Attributes:
        reporter (chainer.Reporter): Collects what the layers report in its scope.
        values (list): A pair for each microbatch with reports: its number of samples,
            and the reported values by name.
    """

    def __init__(self, observers: Iterable[tuple[str, Any]]) -> None:
        self.reporter = _Reporter()
        self.reporter.add_observers("", observers)
        self.values: list[tuple[int, dict[str, Any]]] = []

    def sums(self) -> Sums:
        """Returns by name the sum over samples of each value, and their number.

        This reads the numbers, and so waits for a GPU.
        """
        means = RunningMeans()
        for n, observation in self.values:
            for name, value in observation.items():
                weight = n
                if isinstance(value, _Counted):
                    value, weight = value.value, float(value.n)
                value = chainer.as_array(value)
                # Chainer's own summaries leave out all but numbers, too.
                if value is not None and not np.ndim(value):
                    means.add(name, float(value), weight)
        return means.sums


class PendingReports:
    """One rank's reports of one kind of call, until a call returns them.

    Attributes:
        are_expected (bool): Whether the next such call should collect reports. True if
            the last one had some, or if there was no call yet.
    """

    def __init__(self) -> None:
        self.are_expected = True
        self._sums: list[Sums] = []

    def add(self, reports: Reports) -> None:
        """Adds the values that a stage reported in a call."""
        if sums := reports.sums():
            self.are_expected = True
            self._sums.append(sums)

    def take(self) -> list[Sums]:
        """Returns the sums that no call has returned yet."""
        taken, self._sums = self._sums, []
        return taken


def named(result: Mapping[str, float]) -> dict[str, float]:
    """Returns a pipeline's results, named as a trainer's reporter names a model's.

    Example:
        >>> named({"loss": 0.5, "/3/x": 1.0})
        {'main/loss': 0.5, 'main/3/x': 1.0}
    """
    return {observed_name(key): value for key, value in result.items()}


def observed_name(key: str) -> str:
    """Returns the name that a reporter gives a pipeline's result."""
    if key.startswith("/"):
        return f"main{key}"
    return f"main/{key}" if key in ("loss", "accuracy") else key
