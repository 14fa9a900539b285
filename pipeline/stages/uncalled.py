"""The layers of a stage that no forward has called yet.

Some layers get their sizes, and draw their weights, at their first call. A rank that
lays layers out asks which of them are still uncalled; a forward asks which of them it
is the first to call::

    forward        0F0                  0F1        0F2
    layer 3        draws its weights    called     called
    the loss                                       draws its weights
    sized_now()    {3}                  {}         {4}      4: behind the last layer
"""

from __future__ import annotations

from typing import Any

from divisible import Divisible
from pipeline.stages.loss import Loss


class Uncalled:
    """The layers of a stage, and its loss, that have not been called yet.

    Args:
        layers (Divisible): The layers.
        loss (Loss or None): Loss behind the layers, on the last stage.

    Attributes:
        places (dict): Layers that may have weights and were not called yet, by
            position. The loss has the position behind the last layer.
    """

    def __init__(self, layers: Divisible, loss: Loss | None) -> None:
        self._layers, self._loss = layers, loss
        self.await_all()

    def await_all(self) -> None:
        """Awaits a first call of each layer: a load may have taken sizes away."""
        start, _ = self._layers.layer_range
        self.places: dict[int, Any] = {
            position: layer
            for position, layer in enumerate(self._layers, start)
            if hasattr(layer, "params")
        }
        if self._loss is not None:
            self.places[len(self._layers.model_layers)] = self._loss

    @property
    def are_unsized(self) -> bool:
        """Whether one of them gets its size at its first call."""
        return any(_is_unsized(place) for place in self.places.values())

    def sized_now(self) -> set[int]:
        """Returns the positions of layers that draw their weights in this forward."""
        has_loss = self._loss is not None and self._loss.is_wanted
        called = {
            p for p, it in self.places.items() if it is not self._loss or has_loss
        }
        places = {position: self.places.pop(position) for position in called}
        return {position for position, place in places.items() if _is_unsized(place)}


def _is_unsized(place: Any) -> bool:
    return not all(param.is_initialized for param in place.params())
