"""What microbatches cost on one rank, against one backward over the whole minibatch.

    OMP_NUM_THREADS=1 python benchmarks/accumulation.py

A multi-layer perceptron makes one step, forward and backward, in four ways: undivided;
in microbatches whose gradients Chainer accumulates; and in microbatches by
pipeline.backprop, with whole backward (B) and with split backward (I, and W at the end
of the microbatch). A fifth column times the step's matrix products alone, at the size
of a microbatch against that of the minibatch: what no accumulation can win back.

The variants alternate within one run, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time

import chainer
import numpy
import scipy
from chainer import functions as F
from chainer import links as L

from pipeline.backprop import backward, backward_input
from pipeline.weight_gradients import WeightGradients


def build(width: int, layers: int) -> chainer.Sequential:
    """Return `layers` - 1 hidden layers of Linear and ReLU, and Linear to 10."""
    model = chainer.Sequential()
    for _ in range(layers - 1):
        model.append(L.Linear(width, width, initialW=chainer.initializers.HeNormal()))
        model.append(F.relu)
    model.append(L.Linear(width, 10))
    return model


class Step:
    """One minibatch, forward and backward, in each of the ways compared."""

    def __init__(self, model, x, t, n_microbatches):
        self.model, self.x, self.t = model, x, t
        size = len(x) // n_microbatches
        self.slices = [slice(i, i + size) for i in range(0, len(x), size)]
        self.gradients = WeightGradients(model.params)

    def loss(self, x, t):
        # A mean over the minibatch: each microbatch contributes its share.
        return F.softmax_cross_entropy(self.model(x), t) * (len(x.array) / len(self.x))

    def undivided(self):
        self.model.cleargrads()
        self.loss(chainer.Variable(self.x), self.t).backward()

    def chainer_accumulation(self):
        self.model.cleargrads()
        for s in self.slices:
            self.loss(chainer.Variable(self.x[s]), self.t[s]).backward()

    def whole_backward(self):
        self.gradients.begin()
        one = numpy.ones((), self.x.dtype)
        for s in self.slices:
            x = chainer.Variable(self.x[s])
            backward([x], [self.loss(x, self.t[s])], [one], self.gradients)
        self.gradients.finish()

    def split_backward(self):
        self.gradients.begin()
        one = numpy.ones((), self.x.dtype)
        for s in self.slices:
            x = chainer.Variable(self.x[s])
            loss = self.loss(x, self.t[s])
            _, pending = backward_input([x], [loss], [one], self.gradients)
            pending.run()
        self.gradients.finish()


class Products:
    """The matrix products of one hidden layer: forward, input and weight gradients."""

    def __init__(self, width, batch, n_microbatches):
        random = numpy.random.RandomState(0)
        self.x, self.gy = random.randn(2, batch, width).astype("f")
        self.weight, self.gradient = random.randn(2, width, width).astype("f")
        self.n_microbatches = n_microbatches

    def run(self, n_microbatches):
        size = len(self.x) // n_microbatches
        y = numpy.empty((size, self.x.shape[1]), "f")
        for i in range(0, len(self.x), size):
            x, gy = self.x[i : i + size], self.gy[i : i + size]
            x.dot(self.weight.T, out=y)
            gy.dot(self.weight, out=y)
            gy.T.dot(x, out=self.gradient)

    def minibatch(self):
        self.run(1)

    def microbatches(self):
        self.run(self.n_microbatches)


def measure(variants, rounds):
    """Return for each variant its seconds in every round."""
    seconds = {name: [] for name in variants}
    for name in variants:
        variants[name]()
    names = list(variants)
    for i in range(rounds):
        # Another order every round, so that no variant always follows the same one.
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.perf_counter()
            variants[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def report(title, seconds):
    """Print medians, and the ratios to the first variant with their range."""
    print(f"{title:<46} {'ms':>8} {'ratio':>6} {'min':>6} {'max':>6}")
    base = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratios = [value / b for value, b in zip(values, base)]
        print(
            f"  {name:<44} {1e3 * statistics.median(values):8.1f} "
            f"{statistics.median(ratios):6.2f} {min(ratios):6.2f} {max(ratios):6.2f}"
        )
    print(flush=True)


def machine():
    """Describe what the figures depend on, apart from the load."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line for line in file if line.startswith("model name")]
        processor = names[0].split(":")[1].strip()
    except (OSError, IndexError):
        pass
    return (
        f"{processor}, {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}, "
        f"Python {platform.python_version()}, NumPy {numpy.__version__}, "
        f"SciPy {scipy.__version__}, Chainer {chainer.__version__}"
    )


def main():
    """Run the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1200)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("OMP_NUM_THREADS=1 python", " ".join(sys.argv))
    print(machine())
    print(
        f"{arguments.layers} layers of width {arguments.width}, batch "
        f"{arguments.batch}; medians of {arguments.rounds} rounds\n"
    )

    random = numpy.random.RandomState(0)
    model = build(arguments.width, arguments.layers)
    x = random.randn(arguments.batch, arguments.width).astype("f")
    t = random.randint(0, 10, arguments.batch).astype("i")
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
        report("step", measure(variants, arguments.rounds))
        products = Products(arguments.width, arguments.batch, n)
        variants = {
            "minibatch": products.minibatch,
            f"{n} microbatches": products.microbatches,
        }
        report("matrix products of one layer", measure(variants, arguments.rounds))


if __name__ == "__main__":
    main()
