"""Microbatches on one rank against one backward over the whole minibatch.

    OMP_NUM_THREADS=1 python -m benchmarks.accumulation

A multi-layer perceptron makes one step, forward and backward, in four ways: undivided;
in microbatches whose gradients Chainer accumulates; and in microbatches by
divisible.backward.backprop, with whole backward (B) and with split backward (I, then
W). The step's matrix products are timed by themselves as well: they are less efficient
at the size of a microbatch, which no accumulation can win back.

The variants alternate within one run, and ratios are taken within a round. Times are
CPU times of the one thread, which other jobs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Callable

import chainer
import numpy
from chainer import functions as F

from benchmarks.common.perceptron import minibatch, mlp
from benchmarks.common.results import Result, alternate, command, cpu_seconds, machine
from chainer_kernels.gemm import gemm
from divisible.backward.backprop import backward, backward_input
from divisible.backward.weight_gradients import WeightGradients


class Step:
    """One minibatch, forward and backward, in each of the ways compared."""

    def __init__(
        self,
        model: chainer.Link,
        x: numpy.ndarray,
        t: numpy.ndarray,
        n_microbatches: int,
    ) -> None:
        self.model, self.x, self.t = model, x, t
        size = len(x) // n_microbatches
        self.slices = [slice(i, i + size) for i in range(0, len(x), size)]
        self.gradients = WeightGradients(model.params)

    def loss(self, x: chainer.Variable, t: numpy.ndarray) -> chainer.Variable:
        """Returns a microbatch's share in the mean loss of the minibatch."""
        return F.softmax_cross_entropy(self.model(x), t) * (len(x.array) / len(self.x))

    def undivided(self) -> None:
        """One forward, one backward."""
        self.model.cleargrads()
        self.loss(chainer.Variable(self.x), self.t).backward()

    def chainer_accumulation(self) -> None:
        """Microbatches; Chainer adds their gradients up."""
        self.model.cleargrads()
        for s in self.slices:
            self.loss(chainer.Variable(self.x[s]), self.t[s]).backward()

    def whole_backward(self) -> None:
        """Microbatches with whole backward (B)."""
        self.gradients.begin()
        one = numpy.ones((), self.x.dtype)
        for s in self.slices:
            x = chainer.Variable(self.x[s])
            backward([x], [self.loss(x, self.t[s])], [one], self.gradients)
        self.gradients.finish()

    def split_backward(self) -> None:
        """Microbatches with split backward (I, then W)."""
        self.gradients.begin()
        one = numpy.ones((), self.x.dtype)
        for s in self.slices:
            x = chainer.Variable(self.x[s])
            loss = self.loss(x, self.t[s])
            _, pending = backward_input([x], [loss], [one], self.gradients)
            pending.run()
        self.gradients.finish()


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

    def undivided(self) -> None:
        """Weight gradients of the whole minibatch."""
        self.weight_gradients([slice(None)])

    def in_order(self) -> None:
        """Weight gradients as microbatches come."""
        for s in self.slices:
            self.weight_gradients([s])

    def layer_by_layer(self) -> None:
        """Weight gradients of all microbatches, when all of them are pending."""
        self.weight_gradients(self.slices)

    def concatenated(self) -> None:
        """The same as one product a layer, which copies the operands together."""
        for gy, x, gradient in zip(self.gy, self.x, self.gradients):
            gy = numpy.concatenate([gy[s] for s in self.slices])
            x = numpy.concatenate([x[s] for s in self.slices])
            gemm(gy.T, x, gradient, accumulate=True)


def measure(
    result: Result, title: str, variants: dict[str, Callable[[], None]], rounds: int
) -> None:
    """Write medians, and the ratios to the first variant with their range."""
    for variant in variants.values():
        variant()
    seconds = alternate(variants, rounds, cpu_seconds)
    result.write(f"{title:<46} {'CPU ms':>8} {'ratio':>6} {'min':>6} {'max':>6}")
    base = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratios = [value / b for value, b in zip(values, base)]
        result.write(
            f"  {name:<44} {1e3 * statistics.median(values):8.1f} "
            f"{statistics.median(ratios):6.2f} {min(ratios):6.2f} {max(ratios):6.2f}"
        )
    result.write()


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1200)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: CPU time is no measure of several threads")
    result = Result("accumulation", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "scipy", "chainer"),
        f"{arguments.layers} layers of width {arguments.width}, batch "
        f"{arguments.batch}; medians of {arguments.rounds} rounds",
        "",
    )

    model = mlp(arguments.width, arguments.layers)
    x, t = minibatch(arguments.width, arguments.batch)
    for n in arguments.microbatches:
        if arguments.batch % n:
            parser.error(f"{arguments.batch} samples make no {n} equal microbatches")
        step = Step(model, x, t, n)
        variants = {
            "undivided step": step.undivided,
            f"{n} microbatches, Chainer": step.chainer_accumulation,
            f"{n} microbatches, B": step.whole_backward,
            f"{n} microbatches, I and W": step.split_backward,
        }
        measure(result, "step", variants, arguments.rounds)
        products = Products(arguments.width, arguments.layers, arguments.batch, n)
        variants = {
            "undivided": products.step,
            f"{n} microbatches": products.step_in_microbatches,
        }
        measure(result, "matrix products alone", variants, arguments.rounds)
        variants = {
            "undivided": products.undivided,
            f"{n} microbatches, as they come": products.in_order,
            f"{n} microbatches, layer by layer": products.layer_by_layer,
            f"{n} microbatches, concatenated": products.concatenated,
        }
        measure(result, "weight gradients alone", variants, arguments.rounds)
    result.save()


if __name__ == "__main__":
    main()
