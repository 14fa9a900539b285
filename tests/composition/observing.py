"""Hooks by which the serial script observes the functions of a model."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np

from tests.composition.own_layers import Reporting

#: By dtype, the numbers that a training which diverges may exceed: beyond is infinity,
#: and what is computed of it is no number.
LARGEST_NUMBERS = {"float16": 65504.0}


class Largest(chainer.FunctionHook):
    """Finds the largest number that functions read.

    Attributes:
        largest: Its absolute value.
    """

    name = "Largest"

    def __init__(self) -> None:
        self.largest = 0.0

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        """Looks at the inputs of a function."""
        for x in in_data:
            if x is not None and x.dtype.kind == "f":
                self.largest = max(self.largest, float(np.abs(x).max(initial=0.0)))


class Reported(chainer.LinkHook):
    """Finds the largest number of which layers report a mean.

    Attributes:
        largest: Its absolute value.
    """

    name = "Reported"

    def __init__(self) -> None:
        self.largest = 0.0

    def forward_preprocess(self, args: Any) -> None:
        """Looks at the input of a layer."""
        if isinstance(args.link, Reporting):
            (x,) = map(chainer.as_array, args.args)
            self.largest = max(self.largest, float(np.abs(x).max(initial=0.0)))


class Normalized(chainer.FunctionHook):
    """Keeps the inputs of batch normalization, to move averages once a minibatch."""

    def begin(self, model: Any) -> list[tuple[Any, Any, Any]]:
        """Returns the links of a model, each with its averages before a minibatch."""
        self._inputs: dict[int, list[Any]] = {}
        self._links = [
            link
            for link in model.links()
            if isinstance(link, chainer.links.BatchNormalization)
        ]
        return [
            (link, link.avg_mean.copy(), link.avg_var.copy()) for link in self._links
        ]

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        """Keeps the input of a batch normalization."""
        mean = getattr(function, "running_mean", None)
        for link in self._links:
            if mean is not None and link.avg_mean is mean:
                self._inputs.setdefault(id(link), []).append(in_data[0].copy())

    def finish(self, before: list[tuple[Any, Any, Any]]) -> None:
        """Moves averages by the inputs of all microbatches.

        Args:
            before: The result of :meth:`begin`.
        """
        for link, mean, variance in before:
            if id(link) not in self._inputs:
                continue
            x = np.concatenate(self._inputs[id(link)])
            axes = tuple(i for i in range(x.ndim) if i != 1)
            n = x.size // x.shape[1]
            decay = link.decay
            link.avg_mean[...] = decay * mean + (1 - decay) * x.mean(axis=axes)
            unbiased = x.var(axis=axes) * (n / max(n - 1, 1))
            link.avg_var[...] = decay * variance + (1 - decay) * unbiased
