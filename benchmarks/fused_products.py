"""Small perceptrons as one function, against fused layers that end at each product.

    OMP_NUM_THREADS=1 python -m benchmarks.fused_products
    OMP_NUM_THREADS=2 python -m benchmarks.fused_products --output two_threads.txt

Two linear layers with a tanh between them run forward and backward::

    one by one    a function for each layer
    layers        Linear > tanh as a product and a loop, and Linear
    perceptron    all as one function, where that was measured faster

All three take turns in one run. The ratio is that of layers over perceptron. All have
the same bits, which is checked.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    ratios,
)
from chainer_kernels import providers
from chainer_kernels.fusion import perceptrons
from divisible import Divisible

#: Seconds that one measurement takes at least, for the clock.
_LONG = 0.05
WIDTHS, BATCHES = (64, 128, 256), (16, 64)


def made(width: int) -> Divisible:
    """Returns two linear layers of a width, the same in each call."""
    np.random.seed(0)
    return Divisible(L.Linear(width, width), F.tanh, L.Linear(width, width))


def step(model: Divisible, x: np.ndarray) -> list[np.ndarray]:
    """Returns the output, and the gradients of the input and all parameters."""
    model.cleargrads()
    leaf = chainer.Variable(x)
    y = model(leaf)
    y.grad = np.ones_like(y.array)
    y.backward()
    return [y.array, leaf.grad, *(param.grad for param in model.params())]


def models(width: int, x: np.ndarray) -> tuple[dict[str, Divisible], bool]:
    """Returns a model for each way, and whether the perceptron was chosen."""
    found = {name: made(width) for name in ("one by one", "layers", "perceptron")}
    with mock.patch.object(perceptrons, "_LARGEST", 0):
        found["layers"].fuse()
        step(found["layers"], x)
    found["perceptron"].fuse()
    step(found["perceptron"], x)
    (choice,) = found["perceptron"].fusion_choices
    return found, choice.is_fused and choice.end == 3


def seconds_of(call: Callable[[], Any]) -> float:
    """Returns the seconds of one call by the clock, of as many as the clock needs."""
    start, n = time.perf_counter(), 0
    while n == 0 or time.perf_counter() - start < _LONG:
        call()
        n += 1
    return (time.perf_counter() - start) / n


def measure(result: Result, width: int, batch: int, rounds: int) -> float | None:
    """Measures a width and a batch; returns the ratio where a perceptron is chosen."""
    x = np.random.default_rng(1).normal(size=(batch, width)).astype(np.float32)
    found, is_chosen = models(width, x)
    calls = {name: functools.partial(step, model, x) for name, model in found.items()}
    expected, *others = (call() for call in calls.values())
    for arrays in others:
        for one, other in zip(expected, arrays):
            np.testing.assert_array_equal(one, other)
    seconds = alternate(calls, rounds, seconds_of)
    ms = {name: 1e3 * statistics.median(each) for name, each in seconds.items()}
    ratio = ratios(seconds["layers"], seconds["perceptron"])
    result.write(
        f"{width:5d} {batch:5d} {ms['one by one']:10.3f} {ms['layers']:8.3f}"
        f" {ms['perceptron']:10.3f}  {ratio:<20} {'yes' if is_chosen else 'no'}"
    )
    return ms["layers"] / ms["perceptron"] if is_chosen else None


def main() -> None:
    """Measures all widths and batches."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("fused_products", arguments.output)
    provider = providers.active()
    result.write(
        command(),
        machine("numpy", "numba", "chainer"),
        f"products by {provider.NAME} {provider.version()}",
        f"milliseconds by the clock, medians of {arguments.rounds} rounds",
        "",
        f"{'width':>5} {'batch':>5} {'one by one':>10} {'layers':>8}"
        f" {'perceptron':>10}  {'layers / perceptron':<20} chosen",
    )
    found = [measure(result, w, b, arguments.rounds) for w in WIDTHS for b in BATCHES]
    chosen = [ratio for ratio in found if ratio is not None]
    if chosen:
        result.write("", f"median where it is chosen: {statistics.median(chosen):.2f}")
    result.save()


if __name__ == "__main__":
    main()
