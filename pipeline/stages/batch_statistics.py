"""Batch normalization in a pipeline: running averages that see the whole minibatch.

Batch normalization moves its running averages in every forward. A minibatch in ``m``
microbatches would move them ``m`` times, each time towards the statistics of a part::

    microbatch   0       1       2
                 mean0   mean1   mean2      collected in the forwards
                   '-------+-------'
    minibatch            mean               one step of the running average

So the functions write into arrays that nobody reads, and the running averages move
once, at the end, by mean and variance over all samples. Activations are still
normalized by the statistics of their microbatch. Replicas exchange their statistics, so
that the averages of links move alike on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import chainer
import numpy as np
from chainer import function_hook
from chainer.functions.normalization import batch_normalization, batch_renormalization

from divisible.running_averages import AveragingFunction, RunningAverage, Sample

Array = Any

_HOST = chainer.get_device("@numpy")
#: Nodes of the graph that may have running averages; renormalization is old-style.
NORMALIZING = (
    batch_normalization.BatchNormalization,
    chainer.FunctionAdapter,
    AveragingFunction,
)


class _Average:
    """The running averages of one call of a function, over one minibatch."""

    def __init__(
        self,
        mean: Array,
        variance: Array,
        decay: float,
        moved: Callable[[], None] | None = None,
    ) -> None:
        self._mean, self._variance, self._decay = mean, variance, decay
        self._moved = moved
        self.samples: list[Sample] = []

    @property
    def decay(self) -> float:
        """The part of the averages that remains when they move."""
        return self._decay

    def whole(self) -> Sample:
        """Returns the statistics of all samples together, in double precision."""
        total = sum(sample.n for sample in self.samples)
        # In double precision: the means of the microbatches are subtracted.
        mean = sum(s.mean.astype(np.float64) * (s.n / total) for s in self.samples)
        variance = sum(
            s.variance.astype(np.float64) * ((s.n - 1) / total)
            + (s.mean.astype(np.float64) - mean) ** 2 * (s.n / total)
            for s in self.samples
        )
        return Sample(total, mean, variance * (total / max(total - 1, 1)))

    def move(self) -> None:
        """Moves the averages as one forward of the whole minibatch would have."""
        _, mean, variance = self.whole()
        device = chainer.backend.get_device_from_array(self._mean)
        for average, new in ((self._mean, mean), (self._variance, variance)):
            new = device.send(new)
            average *= self._decay
            average += ((1 - self._decay) * new).astype(average.dtype)
        if self._moved is not None:
            self._moved()


class BatchStatistics(function_hook.FunctionHook):
    """Collects the statistics of batch normalization over a minibatch.

    An instance is a context around each forward of a microbatch. It is called by
    functions, not links. So it serves ``BatchNormalization``, ``BatchRenormalization``,
    ChainerMN's ``MultiNodeBatchNormalization``, and ``F.batch_normalization`` with the
    user's own running averages.

    ::

        begin()
        with statistics:          for each microbatch
            layers(x)
        finish()                  the averages have moved once

    and around a forward that runs again::

        with discarded():
            layers(x)

    Args:
        links: Returns the links; some count batches in their forward, for fine-tuning.
        gather: ``gather(value)`` returns the values of all replicas; ``None`` if there
            is only one replica.

    Attributes:
        is_needed (bool): Whether a link counts batches, or a function had averages.
        is_shared (bool): Whether replicas share their statistics, so that each of them
            must know all links that count.
    """

    name = "divisible.BatchStatistics"
    # The hook changes no array, so prepared weights need no checks.
    only_reads = True
    # Layers may run fused: this hook does not need to see each of their functions.
    minds_fusion = False

    def __init__(
        self,
        links: Callable[[], Iterable[chainer.Link]],
        gather: Callable[[Any], list] | None = None,
    ) -> None:
        self._links, self._gather = links, gather
        self.is_needed, self.is_shared = False, gather is not None
        self.begin()

    def begin(self) -> None:
        """Begins a minibatch."""
        self._averages: dict[tuple[int, int], _Average] = {}
        self._counts = [
            (link, link.N)
            for link in self._links()
            if {"N", "avg_mean"} <= link._persistent
        ]
        # Averages of links that report them, which replicas share as well.
        self._reported: list[RunningAverage] = []
        if self._gather is not None:
            for link in self._links():
                self._reported += getattr(link, "running_averages", tuple)()
        self._n_microbatches = 0
        self._calls: dict[int, int] = {}
        self.is_needed = self.is_needed or bool(self._counts)

    def added(self, function: None = None) -> None:
        """Begins a microbatch."""
        self._calls = {}
        self._lent: tuple[_Average, tuple[Array, Array]] | None = None
        self._n_microbatches += 1

    def calls(self) -> dict[int, int]:
        """Returns how many calls of this microbatch there were, by their averages."""
        return dict(self._calls)

    def begin_part(self, calls: dict[int, int]) -> None:
        """Continues with another microbatch of a group.

        Args:
            calls: The calls of that microbatch so far; see :meth:`calls`.
        """
        self._calls = dict(calls)

    def count_parts(self, n_more: int) -> None:
        """Counts the microbatches of a group, of which one is counted already."""
        self._n_microbatches += n_more

    def finish(self) -> None:
        """Ends a minibatch: moves the running averages."""
        n = max(1, self._n_microbatches)
        for link, before in self._counts:
            link.N = before + (link.N - before) // n
        if self._gather is not None and (self._counts or self._reported):
            self._share(self._gather)
        for average in self._averages.values():
            average.move()
        self._averages.clear()

    def _share(self, gather: Callable[[Any], list]) -> None:
        """Replaces the statistics of links by those that all replicas collected.

        A replica without samples in this minibatch has none itself.
        """
        links = [link for link, _ in self._counts]
        numbers = {id(link.avg_mean): i for i, link in enumerate(links)}
        for i, its in enumerate(self._reported, len(links)):
            numbers[its.key] = i
        mine = {}
        for (array, call), average in self._averages.items():
            if array in numbers:
                n, mean, variance = average.whole()
                found = Sample(n, _HOST.send(mean), _HOST.send(variance))
                mine[numbers[array], call] = average.decay, found
        said = gather((mine, [link.N - before for link, before in self._counts]))
        for key in sorted(set().union(*(theirs for theirs, _ in said))):
            number, call = key
            found = [theirs[key] for theirs, _ in said if key in theirs]
            samples = [sample for _, sample in found]
            if number >= len(links):
                its = self._reported[number - len(links)]
                average = _Average(its.mean, its.variance, found[0][0], its.moved)
                average.samples = samples
                self._averages[its.key, call] = average
                continue
            link = links[number]
            if link.avg_mean is None:
                # The link has no size before its first call, which is still to come
                # here.
                continue
            average = _Average(link.avg_mean, link.avg_var, found[0][0])
            average.samples = samples
            self._averages[id(link.avg_mean), call] = average
        for i, (link, before) in enumerate(self._counts):
            link.N = before + max(counts[i] for _, counts in said)

    def forward_preprocess(self, function: Any, in_data: tuple) -> None:
        """Replaces the averages that a function moves by copies."""
        if not isinstance(function, NORMALIZING):
            return
        if isinstance(function, AveragingFunction):
            is_averaging = chainer.config.train and function.has_averages()
            function.collect = self._collect if is_averaging else None
            self.is_needed = self.is_needed or is_averaging
            return
        function, names = _averages_of(function)
        if names is None or not chainer.config.train:
            return
        mean, variance = (getattr(function, name) for name in names)
        if mean is None:
            return
        # Copies, because batch renormalization reads the averages as well. With a decay
        # of zero they receive the statistics of the microbatch.
        for name, array in zip(names, (mean, variance)):
            setattr(function, name, array.copy())
        call = self._calls.get(id(mean), 0)
        self._calls[id(mean)] = call + 1
        average = self._averages.get((id(mean), call))
        if average is None:
            average = _Average(mean, variance, function.decay)
            self._averages[id(mean), call] = average
        function.decay = 0.0
        self._lent, self.is_needed = (average, (mean, variance)), True

    def _collect(self, its: RunningAverage, sample: Sample) -> None:
        """Collects the statistics that a function reports."""
        call = self._calls.get(its.key, 0)
        self._calls[its.key] = call + 1
        average = self._averages.get((its.key, call))
        if average is None:
            average = _Average(its.mean, its.variance, its.decay(call), its.moved)
            self._averages[its.key, call] = average
        average.samples.append(sample)

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Collects a function's statistics, and gives the averages back."""
        if self._lent is None or not isinstance(function, NORMALIZING):
            return
        function, names = _averages_of(function)
        if names is None:
            return
        (average, arrays), self._lent = self._lent, None
        mean, variance = (getattr(function, name) for name in names)
        n = in_data[0].size // in_data[1].size
        average.samples.append(Sample(n, mean, variance))
        # ChainerMN's link reads the averages from the function.
        for name, array in zip(names, arrays):
            setattr(function, name, array)


def discarded() -> BatchStatistics:
    """Returns a context in which forwards move no averages."""
    return BatchStatistics(tuple)


def _averages_of(function: Any) -> tuple[Any, tuple[str, str] | None]:
    """Returns the object that has running averages, and their attributes' names."""
    if isinstance(function, batch_normalization.BatchNormalization):
        return function, ("running_mean", "running_var")
    inner = getattr(function, "function", None)
    renormalizes = isinstance(inner, batch_renormalization.BatchRenormalizationFunction)
    if renormalizes and inner.update_statistics:
        return inner, ("_running_mean", "_running_var")
    return function, None
