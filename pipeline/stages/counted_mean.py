"""A mean over the samples of a minibatch, from those of its microbatches."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.minibatch import value_and_count
from divisible.weighted_means import weighted_mean
from pipeline.stages.labels import is_understood, label_left_out
from pipeline.stages.reports import counted_by
from pipeline.stages.sightings import Sighting, Watch, differ


class CountedMean:
    """The mean that a function, such as a loss, is of a minibatch in parts.

    It is the mean of what it gives for the microbatches, weighted by the samples that
    each of them counts. How many these are is known

    * beforehand from the targets, for functions such as ``F.softmax_cross_entropy``,
      also as a ``functools.partial``;
    * if the function says so: ``return loss, n``;
    * by a look at the functions that it calls (:mod:`~pipeline.stages.sightings`).

    Backwards begin before the last microbatch has been counted. So the weights are
    shares of an expected total, and what comes out is multiplied by a correction at the
    end of the minibatch::

        weight      n[i] / expected        known after the forward of microbatch i
        correction  expected / sum(n)      known after the last forward; mostly 1

    Args:
        name (str): What users call the function, for messages.
        function: ``function(*outputs, *targets)`` returns a scalar, or a scalar and the
            number of samples that it is a mean of.
        ignores: Types of functions that are not looked at.
    """

    def __init__(
        self, name: str, function: Callable, ignores: Sequence[type] = ()
    ) -> None:
        self.name = name
        self.function = function
        self.label_left_out = label_left_out(function)
        self.is_understood = is_understood(function)
        self._ignores = ignores
        self._has_warned = False
        self.start((), ())

    def start(self, parts: Sequence[tuple], hosted: Sequence[np.ndarray]) -> None:
        """Begins a minibatch.

        Args:
            parts: The targets of each microbatch.
            hosted: The first target of each as a NumPy array, if a label is left out.
        """
        self._parts = parts
        # Without targets the outputs will tell.
        self._n_samples = [len(part[0]) if part else 0 for part in parts]
        counts: Sequence[Any] = self._n_samples
        if self.label_left_out is not None:
            counts = [int((labels != self.label_left_out).sum()) for labels in hosted]
        self._counts: dict[int, Any] = dict(enumerate(counts))
        self._expected: float = sum(counts)
        self._values: dict[int, Any] = {}
        self._sightings: dict[int, Sighting] = {}
        self._output_sizes: set[int] = set()
        # Whether the function says how many samples it counts, if known.
        self._tells: bool | None = None
        self._is_estimated = False

    def __call__(self, microbatch: int, outputs: Sequence[Any]) -> Any:
        """Returns the function's value for one microbatch, and counts it."""
        targets = self._parts[microbatch]
        if not targets:
            self._n_samples[microbatch] = len(outputs[0])
        if self.is_understood:
            value = self.function(*outputs, *targets)
        else:
            with Watch(self._ignores) as watch, counted_by(watch.count_last):
                value = self.function(*outputs, *targets)
            value = self._count(microbatch, value, watch, outputs)
        # Turned into a number at the end only, for which a GPU has to be waited for.
        self._values[microbatch] = chainer.as_array(value)
        return value

    def _count(
        self, microbatch: int, value: Any, watch: Watch, outputs: Sequence[Any]
    ) -> Any:
        """Notes how many samples the function counted; returns its value alone."""
        value, n = value_and_count(value)
        tells = n is not None
        if self._tells not in (None, tells):
            raise TypeError(
                f"{self.name} must say for all microbatches how many samples it counts,"
                f" or for none: it {'does' if tells else 'does not'} for microbatch"
                f" {microbatch}, unlike for one before"
            )
        n_samples = self._n_samples[microbatch]
        if tells:
            n = _as_count(n, self.name)
            self._estimate(n, microbatch)
        else:
            sizes = {target.size for target in self._parts[microbatch]}
            seen = watch.sighting(value, n_samples, sizes)
            self._sightings[microbatch] = seen
            self._output_sizes |= sizes | {y.size for y in outputs}
            n = seen.n_counted
            if not self._parts[microbatch]:
                self._estimate(n, microbatch)
        self._tells = tells
        self._counts[microbatch] = n
        return value

    def _estimate(self, n: Any, microbatch: int) -> None:
        """Expects of all microbatches what the first one counts of its samples."""
        if n > 0 and not self._is_estimated:
            # From the first that counts: up to here all weights are zero.
            self._is_estimated = True
            if self._parts[microbatch]:
                n_samples = self._n_samples[microbatch]
                self._expected = n * sum(self._n_samples) / n_samples
            else:
                self._expected = n * len(self._parts)

    def weight(self, microbatch: int) -> Any:
        """Returns a microbatch's share of the minibatch, up to the correction.

        On a GPU, it may be an array of one number.
        """
        return self._counts[microbatch] / (self._expected or 1)

    def counts_nothing(self, microbatch: int) -> bool:
        """Whether it is known that no sample of a microbatch counts."""
        n = self._counts[microbatch]
        return isinstance(n, (int, float)) and n == 0

    @property
    def n_known(self) -> int | None:
        """Over how many samples the mean will be; ``None`` if it may turn out later.

        If it is known, no correction is needed.
        """
        return sum(self._counts.values()) if self.is_understood else None

    @property
    def n_counted(self) -> float:
        """Over how many samples the mean is, when all microbatches are counted."""
        return sum(self._counts.values() if self.is_understood else self._numbers())

    @property
    def correction(self) -> float:
        """The factor for sums of weighted gradients in the end."""
        total = self.n_counted
        # Where nothing counts all gradients are zero.
        return self._expected / total if total else 1.0

    @property
    def mean(self) -> float:
        """The mean over the microbatches seen so far."""
        counts, seen = self._numbers(), sorted(self._values)
        values = [float(self._values[i]) for i in seen]
        # Where nothing counts it is what the function gives for nothing, such as zero.
        return weighted_mean(values, [counts[i] for i in seen])

    def _numbers(self) -> list[float]:
        """Returns the counts; a GPU has to be waited for."""
        if not self.is_understood:
            self._counts = {i: _as_number(n) for i, n in self._counts.items()}
        return list(self._counts.values())

    def warning(self) -> str | None:
        """Returns what is to be said of what the microbatches counted, once."""
        if self._has_warned or not self._sightings or not self._differs():
            return None
        self._has_warned = True
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return (
            f"{self.name}, {name}, seems to leave out samples, and not equally many of"
            f" each microbatch. How many cannot be seen, so the minibatch gets the mean"
            f" of the microbatches' means, weighted by all samples, which is not what"
            f" the undivided model gives. Let {self.name} return what it computes and"
            f" how many samples that is a mean of, as in 'return loss, n'"
        )

    def _differs(self) -> bool:
        sightings = [seen for _, seen in sorted(self._sightings.items())]
        if all(seen.shows_nothing for seen in sightings):
            return self._seem_masked()
        return differ(sightings, self._output_sizes)

    def _seem_masked(self) -> bool:
        """Whether the targets look as if some labels were to be left out."""
        labels = [part[0] for part in self._parts if part and len(part[0])]
        if not labels:
            return False
        if not all(isinstance(t, np.ndarray) and t.dtype.kind == "i" for t in labels):
            return False
        # Other negative numbers are no labels, and of two one may be called -1.
        if any((t < -1).any() for t in labels) or all(
            np.isin(t, (-1, 1)).all() for t in labels
        ):
            return False
        return len({float(np.mean(t == -1)) for t in labels}) > 1


def _as_count(n: Any, name: str) -> float:
    """Returns how many samples a function says that it counts."""
    # A variable would be a second loss, or the accuracy, rather than a number.
    is_one = not isinstance(n, (bool, chainer.Variable)) and np.ndim(n) == 0
    number = _as_number(n) if is_one else n
    if not is_one or not isinstance(number, numbers.Real):
        raise TypeError(
            f"{name} must return a scalar, or a scalar and the number of samples that"
            f" it is a mean of, not {n!r} as that number"
        )
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(f"{name} says that it counts {number} samples")
    return number


def _as_number(n: Any) -> float:
    return n.item() if hasattr(n, "item") else n
