"""Parameters on disk: float32 in their files, and so their own masters.

A streamed layer computes in float32 and returns float16, so its gradients are float32
as well. They are scaled, as all others are. The factor that unscales them is applied in
the update, which reads and writes the files in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np


def is_streamed(param: chainer.Parameter) -> bool:
    """Returns whether a parameter is on disk."""
    return getattr(param, "is_streamed", False)


class StreamedParameters:
    """The parameters of an optimizer that are on disk.

    Args:
        parameters: All parameters of the optimizer, with paths.

    Attributes:
        paths: Paths of the parameters on disk.
        parameters: The parameters on disk.
    """

    def __init__(self, parameters: Sequence[tuple[str, chainer.Parameter]]) -> None:
        own = [(path, param) for path, param in parameters if is_streamed(param)]
        self.paths = [path for path, _ in own]
        self.parameters = [param for _, param in own]
        self._without_gradients: list[chainer.Parameter] = []

    def sum_squares(self, inverse: float) -> np.ndarray:
        """Returns for each parameter the sum of its squared gradients, in float64.

        Args:
            inverse: Factor of the gradients.
        """
        return np.array(
            [
                sum(map(_sum_of_squares, self._gradient(param))) * inverse**2
                for param in self.parameters
            ],
            np.float64,
        )

    def multiply(self, factor: float) -> None:
        """Multiplies the gradients in their files."""
        for param in self.parameters:
            param._loss_scale = None
            for part in self._gradient(param, written=True):
                part *= part.dtype.type(factor)

    def begin(self) -> None:
        """Sets zeros as the gradient of each parameter to update that has none.

        Chainer's optimizers do so for all parameters, so that momentum and hooks
        continue.
        """
        for param in self.parameters:
            rule = param.update_rule
            if param.grad is None and rule is not None and rule.enabled:
                param.zero_gradient()
                self._without_gradients.append(param)

    def end(self) -> None:
        """Removes the gradients that :meth:`begin` has set."""
        for param in self._without_gradients:
            param.cleargrad()
        self._without_gradients.clear()

    def update(self, inverse: float) -> None:
        """Updates the parameters by their rules.

        Args:
            inverse: Factor of the gradients.
        """
        for param in self.parameters:
            param.update(factor=inverse)

    @staticmethod
    def _gradient(param: Any, written: bool = False) -> Any:
        return () if param.grad is None else param.parts_of(param.grad, written)


def _sum_of_squares(part: np.ndarray) -> float:
    flat = part.reshape(-1)
    # Split into pieces that are converted in the cache.
    pieces = np.array_split(flat, max(1, flat.size // 4096))
    return sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces)
