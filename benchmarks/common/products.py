"""The matrix products of the perceptron, without anything around them."""

from __future__ import annotations

import numpy

from chainer_kernels.gemm import gemm


class Products:
    """The matrix products of the hidden layers, without anything around them.

    Every layer has its own arrays: as in a real step, a layer's weights have left the
    cache by the time the next microbatch comes to it.
    """

    def __init__(
        self, width: int, layers: int, batch: int, n_microbatches: int
    ) -> None:
        random = numpy.random.default_rng(0)

        def arrays(rows: int) -> list[numpy.ndarray]:
            shape = (rows, width)
            return [random.standard_normal(shape, "f") for _ in range(layers - 1)]

        self.weights, self.gradients = arrays(width), arrays(width)
        self.x, self.gy = arrays(batch), arrays(batch)
        size = batch // n_microbatches
        self.slices = [slice(i, i + size) for i in range(0, batch, size)]
        self.out = numpy.empty((batch, width), "f")

    def products(self, slices: list[slice]) -> None:
        """Forward, input gradients and weight gradients of every slice."""
        for s in slices:
            for x, weight in zip(self.x, self.weights):
                x[s].dot(weight.T, out=self.out[s])
            for gy, weight in zip(self.gy, self.weights):
                gy[s].dot(weight, out=self.out[s])
            self.weight_gradients([s])

    def weight_gradients(self, slices: list[slice]) -> None:
        """Weight gradients of the slices, one layer after the other."""
        for gy, x, gradient in zip(self.gy, self.x, self.gradients):
            for s in slices:
                gemm(gy[s].T, x[s], gradient, accumulate=True)

    def step(self) -> None:
        """All products, undivided."""
        self.products([slice(None)])

    def step_in_microbatches(self) -> None:
        """All products, microbatch by microbatch."""
        self.products(self.slices)
