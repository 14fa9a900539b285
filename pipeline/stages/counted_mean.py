"""A mean over the samples of a minibatch, from the means of its microbatches."""

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
    """The mean that a function, such as a loss, has over a minibatch in parts.

    The means of the microbatches are weighted by the number of samples that count in
    each. This number is known

    * beforehand from the targets, for functions such as ``F.softmax_cross_entropy``,
      also as a ``functools.partial``;
    * from the function itself, if it returns it: ``return loss, n``;
    * from the functions that it calls (:mod:`~pipeline.stages.sightings`).

    Backwards begin before the last microbatch has been counted. So the weights are
    shares of an expected total. At the end of the minibatch, the gradients are
    multiplied by a correction::

        weight      n[i] / expected        known after the forward of microbatch i
        correction  expected / sum(n)      known after the last forward; mostly 1

    Args:
        name (str): Name that users give the function, for messages.
        function: ``function(*outputs, *targets)`` returns a scalar, or a scalar and the
            number of samples that it is a mean of.
        ignores: Types of functions that are not observed.
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
            parts: The targets of each microbatch, as tuples of arrays.
            hosted: First target of each microbatch as a NumPy array, if a label is left
                out.
        """
        self._parts = parts
        # Without targets, the outputs have the number of samples.
        self._n_samples = [len(part[0]) if part else 0 for part in parts]
        counts: Sequence[Any] = self._n_samples
        if self.label_left_out is not None:
            counts = [int((labels != self.label_left_out).sum()) for labels in hosted]
        self._counts: dict[int, Any] = dict(enumerate(counts))
        self._expected: float = sum(counts)
        self._values: dict[int, Any] = {}
        self._sightings: dict[int, Sighting] = {}
        self._output_sizes: set[int] = set()
        # Whether the function returns how many samples count; None if not known yet.
        self._tells: bool | None = None
        self._is_estimated = False

    def __call__(self, microbatch: int, outputs: Sequence[Any]) -> Any:
        """Returns the function's value for one microbatch, and counts its samples."""
        targets = self._parts[microbatch]
        if not targets:
            self._n_samples[microbatch] = len(outputs[0])
        if self.is_understood:
            value = self.function(*outputs, *targets)
        else:
            with Watch(self._ignores) as watch, counted_by(watch.count_last):
                value = self.function(*outputs, *targets)
            value = self._count(microbatch, value, watch, outputs)
        # An array until the end: a number would have to be waited for on a GPU.
        self._values[microbatch] = chainer.as_array(value)
        return value

    def _count(
        self, microbatch: int, value: Any, watch: Watch, outputs: Sequence[Any]
    ) -> Any:
        """Records how many samples count; returns the function's value without it."""
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
        """Sets the expected total from the first microbatch in which samples count."""
        if n > 0 and not self._is_estimated:
            # Up to here no samples have counted, and all weights are zero.
            self._is_estimated = True
            if self._parts[microbatch]:
                n_samples = self._n_samples[microbatch]
                self._expected = n * sum(self._n_samples) / n_samples
            else:
                self._expected = n * len(self._parts)

    def weight(self, microbatch: int) -> Any:
        """Returns a microbatch's weight: its share of the minibatch, before correction.

        On a GPU, it may be an array of one number.
        """
        return self._counts[microbatch] / (self._expected or 1)

    def counts_nothing(self, microbatch: int) -> bool:
        """Returns whether it is known that no sample of a microbatch counts."""
        n = self._counts[microbatch]
        return isinstance(n, (int, float)) and n == 0

    @property
    def n_known(self) -> int | None:
        """Number of samples of the mean; ``None`` if it is known only later.

        No correction is needed if the number is known.
        """
        return sum(self._counts.values()) if self.is_understood else None

    @property
    def n_counted(self) -> float:
        """Number of samples of the mean, when all microbatches are counted."""
        return sum(self._counts.values() if self.is_understood else self._numbers())

    @property
    def correction(self) -> float:
        """The factor for sums of weighted gradients at the end of a minibatch."""
        total = self.n_counted
        # If no sample counts, all gradients are zero.
        return self._expected / total if total else 1.0

    @property
    def mean(self) -> float:
        """The mean over the microbatches seen so far."""
        counts, seen = self._numbers(), sorted(self._values)
        values = [float(self._values[i]) for i in seen]
        # If no sample counts, this is the function's value for no samples, such as
        # zero.
        return weighted_mean(values, [counts[i] for i in seen])

    def _numbers(self) -> list[float]:
        """Returns the counts as numbers; this waits for a GPU."""
        if not self.is_understood:
            self._counts = {i: _as_number(n) for i, n in self._counts.items()}
        return list(self._counts.values())

    def warning(self) -> str | None:
        """Returns a warning about samples that were left out unseen, once."""
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
        """Returns whether some targets seem to be labels that are left out."""
        labels = [part[0] for part in self._parts if part and len(part[0])]
        if not labels:
            return False
        if not all(isinstance(t, np.ndarray) and t.dtype.kind == "i" for t in labels):
            return False
        # Other negative numbers are no labels, and one of two classes may be called -1.
        if any((t < -1).any() for t in labels) or all(
            np.isin(t, (-1, 1)).all() for t in labels
        ):
            return False
        return len({float(np.mean(t == -1)) for t in labels}) > 1


def _as_count(n: Any, name: str) -> float:
    """Returns the number of samples that a function says it counts, as a number."""
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
