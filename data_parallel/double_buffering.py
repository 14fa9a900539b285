"""Double buffering: gradients that are applied one update late.

::

    update 3   wait for mean of 2 -- begin exchange of 3 -- apply mean of 2
    forward and backward of 4        messages of 3 move in between
    update 4   wait for mean of 3 -- begin exchange of 4 -- apply mean of 3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data_parallel import json_arrays
from data_parallel.arrays import HOST
from data_parallel.averaging import Averaging
from data_parallel.parameters import NamedParameter


class Means(NamedTuple):
    """The means of an exchange that is over.

    Attributes:
        by_name: By the parameter's path; what no rank had is not there.
        scale: The loss scale of the gradients.
    """

    by_name: dict[str, Any]
    scale: float

    def give_to(
        self, parameters: Sequence[NamedParameter], loss_scale: float | None
    ) -> None:
        """Makes them the gradients of parameters.

        Args:
            parameters: The model's.
            loss_scale: What the optimizer takes gradients to be scaled by.
        """
        factor = (loss_scale or 1.0) / self.scale
        for name, param in parameters:
            mean = self.by_name.get(name)
            if mean is not None and factor != 1:
                # Beyond float16's range it is infinite, and the step is skipped.
                with np.errstate(over="ignore", invalid="ignore"):
                    mean *= mean.dtype.type(factor)
            # From a snapshot it may come to another device.
            param.grad = param.device.send(mean)
            param._loss_scale = loss_scale


class LateGradients:
    """The gradients that are exchanged meanwhile, and the means of the last ones.

    Args:
        averaging (Averaging): Of the gradients.
    """

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._names: list[str] = []
        self._scale = 1.0
        self._is_under_way = False
        self._means: Means | None = None
        # In turn: one is exchanged, the other applied.
        self._buffers: tuple[dict[str, Any], ...] = ({}, {})
        # Those of the exchange: the update of the last means changes the model's.
        self._weights: dict[str, Any] = {}

    def average(
        self,
        parameters: Sequence[NamedParameter],
        n_samples: int | None,
        loss_scale: float | None,
    ) -> bool:
        """Replaces gradients by the means of the last ones, and begins with them.

        Args:
            parameters: The model's.
            n_samples: Of this rank's minibatch; ``None`` if all are alike.
            loss_scale: What the optimizer takes gradients to be scaled by.

        Returns:
            Whether there were any last ones.
        """
        averaging = self._averaging
        self.finish()
        means, self._means = self._means, None
        weights = None
        if averaging.exchange.uses_weights:
            weights = [_copy(self._weights, n, p.array) for n, p in parameters]
        averaging.begin(parameters, n_samples, weights)
        self._buffers = self._buffers[::-1]
        self._names = [name for name, _ in parameters]
        self._scale, self._is_under_way = averaging.loss_scale, True
        for i, (name, param) in enumerate(parameters):
            gradient = param.grad
            if gradient is not None:
                gradient = _copy(self._buffers[0], name, gradient)
            averaging.exchange.put(i, gradient)
        averaging.exchange.look()
        if means is None:
            return False
        means.give_to(parameters, loss_scale)
        return True

    def finish(self) -> None:
        """Waits for the exchange that goes on, if one does."""
        if self._is_under_way:
            self._is_under_way = False
            found = zip(self._names, self._averaging.exchange.finish())
            by_name = {name: mean for name, mean in found if mean is not None}
            self._means = Means(by_name, self._scale)

    def serialize(self, serializers: Mapping[str, Any]) -> None:
        """Reads or writes the means that are to be applied.

        Args:
            serializers: By the path of a parameter where its mean goes.
        """
        by_name, scale = self._means or Means({}, 0.0)
        found = {}
        for name, serializer in serializers.items():
            mean = by_name.get(name)
            state = {"has_mean": mean is not None, "scale": scale}
            state = json_arrays.serialize(serializer, "late", state)
            scale = scale if state is None else state["scale"]
            if state is not None and state["has_mean"]:
                # One that is read may not be in memory of its own.
                found[name] = np.array(serializer("mean", HOST.send(mean)))
        self._means = Means(found, scale) if scale and found else None


def _copy(buffers: dict[str, Any], name: str, array: Any) -> Any:
    """Returns a copy of an array, in the buffer of its name."""
    found = buffers.get(name)
    is_alike = type(found) is type(array) and found.shape == array.shape
    if not is_alike:
        buffers[name] = np.empty_like(array, order="C")
    np.copyto(buffers[name], array)
    return buffers[name]
