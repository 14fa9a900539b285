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
        by_name: Means by path of the parameter, without those that no rank had.
        scale: The loss scale of the gradients.
    """

    by_name: dict[str, Any]
    scale: float

    def give_to(
        self, parameters: Sequence[NamedParameter], loss_scale: float | None
    ) -> None:
        """Stores the means as the gradients of parameters.

        Args:
            parameters: Parameters of the model.
            loss_scale: The loss scale that the optimizer expects.
        """
        factor = (loss_scale or 1.0) / self.scale
        for name, param in parameters:
            mean = self.by_name.get(name)
            if mean is not None and factor != 1:
                # Beyond float16's range a mean becomes infinite: the update is skipped.
                with np.errstate(over="ignore", invalid="ignore"):
                    mean *= mean.dtype.type(factor)
            # A mean from a snapshot may be on another device.
            param.grad = param.device.send(mean)
            param._loss_scale = loss_scale


class LateGradients:
    """The gradients that are being exchanged, and the means of the last ones.

    Args:
        averaging (Averaging): Averages of the gradients.
    """

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._names: list[str] = []
        self._scale = 1.0
        self._is_under_way = False
        self._means: Means | None = None
        # Used in turn: one is exchanged while the other is applied.
        self._buffers: tuple[dict[str, Any], ...] = ({}, {})
        # Copies for the exchange, because the update changes the model's weights.
        self._weights: dict[str, Any] = {}

    def average(
        self,
        parameters: Sequence[NamedParameter],
        n_samples: int | None,
        loss_scale: float | None,
    ) -> bool:
        """Replaces gradients by the means of the last ones, and begins their exchange.

        Args:
            parameters: Parameters of the model.
            n_samples: Number of samples of this rank's minibatch; ``None`` if all ranks
                have the same number.
            loss_scale: The loss scale that the optimizer expects.

        Returns:
            Whether there were means of a last exchange.
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
        """Waits for the exchange that is under way, if there is one."""
        if self._is_under_way:
            self._is_under_way = False
            found = zip(self._names, self._averaging.exchange.finish())
            by_name = {name: mean for name, mean in found if mean is not None}
            self._means = Means(by_name, self._scale)

    def serialize(self, serializers: Mapping[str, Any]) -> None:
        """Loads or saves the means that the next update applies.

        Args:
            serializers: Serializers by path of the parameter.
        """
        by_name, scale = self._means or Means({}, 0.0)
        found = {}
        for name, serializer in serializers.items():
            mean = by_name.get(name)
            state = {"has_mean": mean is not None, "scale": scale}
            state = json_arrays.serialize(serializer, "late", state)
            scale = scale if state is None else state["scale"]
            if state is not None and state["has_mean"]:
                # A loaded array may be a view of other memory.
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
