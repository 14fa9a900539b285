"""Batch normalization in a pipeline: running averages that see the whole minibatch.

Batch normalization moves its running averages in every forward. A minibatch in ``m``
microbatches would move them ``m`` times, each time towards the statistics of a part::

    microbatch   0       1       2
                 mean0   mean1   mean2      collected in the forwards
                   '-------+-------'
    minibatch            mean               one step of the running average

So the functions are given arrays that nobody reads to write into, and the running
averages move once, at the end, by mean and variance over all samples. What normalizes
the activations is still the microbatch. Replicas tell each other what they found, so
that the averages of links move alike on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer import function_hook
from chainer.functions.normalization import batch_normalization, batch_renormalization

Array = Any

_HOST = chainer.get_device("@numpy")
# Nodes of the graph that may have running averages; renormalization is of the old kind.
_NORMALIZING = (batch_normalization.BatchNormalization, chainer.FunctionAdapter)


class _Sample(NamedTuple):
    """Statistics of one microbatch, of the shape of the running averages."""

    n: int
    mean: Array
    variance: Array  # unbiased


class _Average:
    """The running averages of one call in the forward, over one minibatch."""

    def __init__(self, mean: Array, variance: Array, decay: float) -> None:
        self._mean, self._variance, self._decay = mean, variance, decay
        self.samples: list[_Sample] = []

    @property
    def decay(self) -> float:
        """The part of the averages that remains when they move."""
        return self._decay

    def whole(self) -> _Sample:
        """Returns the statistics of all samples together, in double precision."""
        total = sum(sample.n for sample in self.samples)
        # In double precision: the pieces' means are subtracted from each other.
        mean = sum(s.mean.astype(np.float64) * (s.n / total) for s in self.samples)
        variance = sum(
            s.variance.astype(np.float64) * ((s.n - 1) / total)
            + (s.mean.astype(np.float64) - mean) ** 2 * (s.n / total)
            for s in self.samples
        )
        return _Sample(total, mean, variance * (total / max(total - 1, 1)))

    def move(self) -> None:
        """Moves the averages as the whole minibatch in one forward would have."""
        _, mean, variance = self.whole()
        device = chainer.backend.get_device_from_array(self._mean)
        for average, new in ((self._mean, mean), (self._variance, variance)):
            new = device.send(new)
            average *= self._decay
            average += ((1 - self._decay) * new).astype(average.dtype)


class BatchStatistics(function_hook.FunctionHook):
    """Collects the statistics of batch normalization over a minibatch.

    Meant as a context around each forward of a microbatch. It sees the functions, not
    the links, so that it serves ``BatchNormalization``, ``BatchRenormalization`` and
    ChainerMN's ``MultiNodeBatchNormalization`` alike, and ``F.batch_normalization``
    with running averages of the user's own.

    ::

        begin()
        with statistics:          for each microbatch
            layers(x)
        finish()                  the averages have moved once

    and around one that is only run again::

        with discarded():
            layers(x)

    Args:
        links: Returns the links whose forwards count batches, for fine-tuning.
        gather: Returns what every replica gives; ``None`` if there is but one.

    Attributes:
        is_needed (bool): Whether a link counts batches, or some function had averages.
    """

    name = "divisible.BatchStatistics"
    # What it sees stays what it is, so prepared weights need no checks.
    only_reads = True
    # Layers that run as one may do so before its eyes.
    minds_fusion = False

    def __init__(
        self,
        links: Callable[[], Iterable[chainer.Link]],
        gather: Callable[[Any], list] | None = None,
    ) -> None:
        self._links, self._gather = links, gather
        self.is_needed = False
        self.begin()

    def begin(self) -> None:
        """Begins a minibatch."""
        self._averages: dict[tuple[int, int], _Average] = {}
        self._counts = [
            (link, link.N)
            for link in self._links()
            if {"N", "avg_mean"} <= link._persistent
        ]
        self._n_microbatches = 0
        self.is_needed = self.is_needed or bool(self._counts)

    def added(self, function: None = None) -> None:
        """Begins a microbatch."""
        self._calls: dict[int, int] = {}
        self._lent: tuple[_Average, tuple[Array, Array]] | None = None
        self._n_microbatches += 1

    def finish(self) -> None:
        """Ends a minibatch: moves the running averages."""
        n = max(1, self._n_microbatches)
        for link, before in self._counts:
            link.N = before + (link.N - before) // n
        if self._gather is not None and self._counts:
            self._share(self._gather)
        for average in self._averages.values():
            average.move()
        self._averages.clear()

    def _share(self, gather: Callable[[Any], list]) -> None:
        """Lets the averages of links move by what all replicas have found.

        One without a sample in this minibatch has found nothing, and learns all of it.
        """
        links = [link for link, _ in self._counts]
        numbers = {id(link.avg_mean): i for i, link in enumerate(links)}
        mine = {}
        for (array, call), average in self._averages.items():
            if array in numbers:
                n, mean, variance = average.whole()
                found = _Sample(n, _HOST.send(mean), _HOST.send(variance))
                mine[numbers[array], call] = average.decay, found
        said = gather((mine, [link.N - before for link, before in self._counts]))
        for key in sorted(set().union(*(theirs for theirs, _ in said))):
            link, call = links[key[0]], key[1]
            found = [theirs[key] for theirs, _ in said if key in theirs]
            if link.avg_mean is None:
                # It is sized at its first call, which is still to come here.
                continue
            average = _Average(link.avg_mean, link.avg_var, found[0][0])
            average.samples = [sample for _, sample in found]
            self._averages[id(link.avg_mean), call] = average
        for i, (link, before) in enumerate(self._counts):
            link.N = before + max(counts[i] for _, counts in said)

    def forward_preprocess(self, function: Any, in_data: tuple) -> None:
        """Lets a function write its statistics elsewhere."""
        if not isinstance(function, _NORMALIZING):
            return
        function, names = _averages_of(function)
        if names is None or not chainer.config.train:
            return
        mean, variance = (getattr(function, name) for name in names)
        if mean is None:
            return
        # Batch renormalization reads them as well, so they are copies. A decay of zero
        # leaves in them what was found in the microbatch.
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

    def forward_postprocess(self, function: Any, in_data: tuple) -> None:
        """Takes what a function wrote."""
        if self._lent is None or not isinstance(function, _NORMALIZING):
            return
        function, names = _averages_of(function)
        if names is None:
            return
        (average, arrays), self._lent = self._lent, None
        mean, variance = (getattr(function, name) for name in names)
        n = in_data[0].size // in_data[1].size
        average.samples.append(_Sample(n, mean, variance))
        # ChainerMN's link reads them from the function.
        for name, array in zip(names, arrays):
            setattr(function, name, array)


def discarded() -> BatchStatistics:
    """Returns a context in which forwards move no averages and count for nothing."""
    return BatchStatistics(tuple)


def _averages_of(function: Any) -> tuple[Any, tuple[str, str] | None]:
    """Returns what has the running averages, and what it calls them."""
    if isinstance(function, batch_normalization.BatchNormalization):
        return function, ("running_mean", "running_var")
    inner = getattr(function, "function", None)
    renormalizes = isinstance(inner, batch_renormalization.BatchRenormalizationFunction)
    if renormalizes and inner.update_statistics:
        return inner, ("_running_mean", "_running_var")
    return function, None
