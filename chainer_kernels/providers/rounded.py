"""Products and convolutions in bfloat16, on processors that have no such instructions.

Operands are rounded to bfloat16. A product of two of them is exact in float32, so the
provider for float32 computes the same numbers, up to the order of additions::

    x float32 -> rounded, float32 --.
    W float32 -> rounded, float32 ---+--> provider for float32 -> y float32

It is slower than products in float32, by the rounding.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from chainer_kernels import kept_weights
from chainer_kernels.bfloat16 import rounded
from chainer_kernels.geometry import Geometry


class RoundedOperands:
    """A provider of products in bfloat16, by one for float32.

    Args:
        provider: The provider for float32.
    """

    NAME = "rounded operands"

    def __init__(self, provider: ModuleType) -> None:
        self._provider = provider

    def as_operand(self, W: np.ndarray) -> np.ndarray:
        """Returns a matrix that is rounded once for several products."""
        return rounded(W)

    def convolution(
        self,
        x: np.ndarray,
        W: np.ndarray,
        b: np.ndarray | None,
        geometry: Geometry,
        relu: bool = False,
    ) -> np.ndarray:
        """Returns the output of a convolution."""
        return self._provider.convolution(rounded(x), _weights(W), b, geometry, relu)

    def convolution_data(
        self, gy: np.ndarray, W: np.ndarray, geometry: Geometry, size: tuple[int, ...]
    ) -> np.ndarray:
        """Returns the gradient of a convolution's input."""
        return self._provider.convolution_data(rounded(gy), _weights(W), geometry, size)

    def convolution_weights(
        self,
        x: np.ndarray,
        gy: np.ndarray,
        geometry: Geometry,
        out: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> np.ndarray:
        """Returns the gradient of a convolution's weights, as the provider does."""
        return self._provider.convolution_weights(
            rounded(x), rounded(gy), geometry, out, accumulate
        )

    def turns_weights(self, x: tuple, gy: tuple, geometry: Geometry) -> bool:
        """Returns whether gradients of weights are made in another order."""
        return self._provider.turns_weights(x, gy, geometry)

    def add_turned_weights(
        self,
        x: np.ndarray,
        gy: np.ndarray,
        geometry: Geometry,
        out: np.ndarray,
        is_first: bool,
    ) -> None:
        """Adds the gradient of a convolution's weights, in the other order."""
        self._provider.add_turned_weights(
            rounded(x), rounded(gy), geometry, out, is_first
        )

    def turn_weights_back(self, turned: np.ndarray) -> None:
        """Turns such a gradient to Chainer's order, where it is."""
        self._provider.turn_weights_back(turned)

    def product(
        self,
        a: np.ndarray,
        b: np.ndarray,
        out: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> np.ndarray:
        """Returns a product of matrices, written or added to ``out``."""
        return self._provider.product(rounded(a), rounded(b), out, accumulate)

    def product_with_weights(
        self,
        a: np.ndarray,
        W: np.ndarray,
        is_transposed: bool = False,
        bias: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns a product with weights that may be kept, turned around or not."""
        W = _weights(W)
        y = self._provider.product(rounded(a), W.T if is_transposed else W)
        if bias is not None:
            y += bias
        return y

    def product_of_stacks(self, a: np.ndarray, b: np.ndarray) -> None:
        """Returns nothing: NumPy multiplies stacks of rounded matrices."""


def _weights(W: np.ndarray) -> np.ndarray:
    """Returns weights rounded, perhaps kept."""
    return kept_weights.kept(W, "rounded", W.nbytes, lambda: rounded(W))
