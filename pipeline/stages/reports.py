"""Reports of layers while they compute, gathered over microbatches and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.weighted_means import RunningMeans, Sums


class _Counted(NamedTuple):
    """A value that is a mean of another number than the microbatch's samples."""

    value: Any
    n: Any


class _Reporter(chainer.Reporter):
    """Takes reports of links that are not part of the stage, too.

    Attributes:
        count: Returns what the values that are reported now are means of; ``None`` for
            all samples.
    """

    count: Callable[[], Any] = staticmethod(lambda: None)

    def report(self, values: dict, observer: Any = None) -> None:
        n = self.count()
        if n is not None:
            values = {k: _Counted(chainer.as_array(v), n) for k, v in values.items()}
        if observer is None or id(observer) in self._observer_names:
            super().report(values, observer)
            return
        # Not added for good: after this link there may be another at its address.
        self.add_observer(f"/{type(observer).__name__}", observer)
        super().report(values, observer)
        del self._observer_names[id(observer)]


@contextmanager
def counted_by(count: Callable[[], Any]) -> Iterator[None]:
    """Weights what a stage's loss reports by what it counted before it reported.

    ``L.Classifier`` reports the loss after it has called ``lossfun``, and the accuracy
    after ``accfun``.

    Args:
        count: Returns how much was counted; ``None`` for all samples.
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
    """Means of what one stage's layers gave to :func:`chainer.report`.

    A value that is reported for every microbatch becomes the mean over the samples of
    the minibatch, as the undivided model would have reported it.

    Args:
        observers: Pairs of a name and a link. What link ``/3`` reports as ``loss`` is
            called ``/3/loss``; what is reported without a link has just its name. Other
            links have the name of their type.

    Attributes:
        reporter (chainer.Reporter): Collects what the layers report in its scope.
        values (list): For each microbatch of which something was reported how many
            samples it has, and what was reported.
    """

    def __init__(self, observers: Iterable[tuple[str, Any]]) -> None:
        self.reporter = _Reporter()
        self.reporter.add_observers("", observers)
        self.values: list[tuple[int, dict[str, Any]]] = []

    def sums(self) -> Sums:
        """Returns by name the sum over samples, and how many they were.

        Here the numbers are read, for which a GPU has to be waited for.
        """
        means = RunningMeans()
        for n, observation in self.values:
            for name, value in observation.items():
                weight = n
                if isinstance(value, _Counted):
                    value, weight = value.value, float(value.n)
                value = chainer.as_array(value)
                # As Chainer's own summaries do, which leave out all but numbers.
                if value is not None and not np.ndim(value):
                    means.add(name, float(value), weight)
        return means.sums


class PendingReports:
    """One rank's reports of one kind of call, until a call returns them.

    Attributes:
        are_expected (bool): Whether the next such call should collect reports: the
            last one had some, or there was none yet.
    """

    def __init__(self) -> None:
        self.are_expected = True
        self._sums: list[Sums] = []

    def add(self, reports: Reports) -> None:
        """Adds what a stage reported in a call."""
        if sums := reports.sums():
            self.are_expected = True
            self._sums.append(sums)

    def take(self) -> list[Sums]:
        """Returns what no call has returned yet."""
        taken, self._sums = self._sums, []
        return taken


def named(result: Mapping[str, float]) -> dict[str, float]:
    """Names a pipeline's results as a trainer's reporter does those of a model.

    Example:
        >>> named({"loss": 0.5, "/3/x": 1.0})
        {'main/loss': 0.5, 'main/3/x': 1.0}
    """

    def name(key: str) -> str:
        if key.startswith("/"):
            return f"main{key}"
        return f"main/{key}" if key in ("loss", "accuracy") else key

    return {name(key): value for key, value in result.items()}
