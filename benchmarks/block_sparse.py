"""Layers that skip pruned blocks, against the same with all weights.

    OMP_NUM_THREADS=1 python -m benchmarks.block_sparse

Each layer is measured at several parts of zeros, in blocks of 8 x 8::

    inference    forward without a graph, of the link that an applied plan leaves, which
                 stores no other blocks
    training     a microbatch of a stage: forward, and the gradients of inputs and
                 weights, in minibatches of four

A minibatch keeps prepared weights from microbatch to microbatch; inference keeps none.

Dense and sparse take turns in one run; the ratio is dense over sparse. The difference
is that of outputs and gradients, over the largest of each: another order of additions.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chainer
import numpy as np

import chainer_kernels
from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    ratios,
)
from benchmarks.common.single_layers import (
    Case,
    convolution_cases,
    linear_cases,
    seconds_of,
)
from chainer_kernels import providers
from divisible.backward.backprop import backward
from divisible.backward.weight_gradients import WeightGradients
from model_compression.block_links import finish, prepare, set_choice, set_live

#: Parts of blocks that are zero.
DEGREES = (0.5, 0.75, 0.9, 0.95)
#: Microbatches of a minibatch.
MICROBATCHES = 4

CASES: list[Case] = [
    *linear_cases(
        (
            (64, 1024, 1024),
            (8, 1024, 1024),
            (1, 1024, 1024),
            (256, 4096, 4096),
            (64, 256, 256),
        )
    ),
    *convolution_cases(
        (
            (8, 64, 32, 64, 3),
            (16, 256, 8, 256, 3),
            (8, 256, 14, 64, 1),
            (8, 64, 14, 256, 1),
        )
    ),
]


def pair(make: Callable[[], Any], degree: float) -> tuple[Any, Any]:
    """Returns a layer with zeros, and the same one that skips them."""
    dense = make()
    random = np.random.default_rng(0)
    outs, ins = (n // 8 for n in dense.W.shape[:2])
    order = random.permutation(outs * ins)
    is_zero = (order < degree * outs * ins).reshape(outs, ins)
    is_zero = is_zero.repeat(8, axis=0).repeat(8, axis=1)
    is_zero = is_zero.reshape(*is_zero.shape, *[1] * (dense.W.ndim - 2))
    is_zero = np.broadcast_to(is_zero, dense.W.shape)
    dense.W.array[is_zero] = 0
    sparse = dense.copy("copy")
    if not prepare(sparse):
        raise ValueError(f"{dense} cannot skip blocks")
    set_live(sparse, is_zero)
    set_choice(sparse, True)
    return dense, sparse


def inference(layer: Any, x: np.ndarray) -> list[np.ndarray]:
    """Returns the output, without a graph."""
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return [layer(x).array]


def training(layer: Any, gradients: WeightGradients, x: np.ndarray) -> list[np.ndarray]:
    """Runs a minibatch of equal microbatches.

    Returns:
        The output and the gradient of the input of a microbatch, and the gradient of
        the weights.
    """
    gradients.begin()
    with chainer_kernels.unchanged_weights(MICROBATCHES):
        for _ in range(MICROBATCHES):
            leaf = chainer.Variable(x)
            y = layer(leaf)
            gy = np.ones_like(y.array)
            (gx,) = backward([leaf], [y], [gy], gradients)
    gradients.finish()
    return [y.array, gx, layer.W.grad]


def differences(
    dense: list[np.ndarray], sparse: list[np.ndarray], W: np.ndarray
) -> Iterator[float]:
    """Yields the largest difference of each array, over the largest number in it."""
    for one, other in zip(dense, sparse):
        if one.shape == W.shape:
            one = np.where(W == 0, 0, one)
        yield float(np.abs(one - other).max() / np.abs(one).max())


def measure(result: Result, case: Case, degree: float, rounds: int) -> None:
    """Measures a layer at one part of zeros, and writes its row."""
    name, make, shape = case
    np.random.seed(0)
    dense, sparse = pair(make, degree)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    text = f"{name:<20} {' x '.join(map(str, shape)):<17} {degree:5.0%}"
    applied = sparse.copy("copy")
    finish(applied)
    in_training = {
        key: functools.partial(training, layer, WeightGradients(layer.params), x)
        for key, layer in (("dense", dense), ("sparse", sparse))
    }
    in_inference = {
        "dense": functools.partial(inference, dense, x),
        "sparse": functools.partial(inference, applied, x),
    }
    gap = 0.0
    for calls, n in ((in_inference, 1), (in_training, MICROBATCHES)):
        found = [call() for call in calls.values()]
        gap = max(gap, *differences(*found, dense.W.array))
        seconds = alternate(calls, rounds, seconds_of)
        ms = {key: 1e3 * statistics.median(each) / n for key, each in seconds.items()}
        text += (
            f" {ms['dense']:8.3f} {ms['sparse']:8.3f}"
            f"  {ratios(seconds['dense'], seconds['sparse']):<20}"
        )
    result.write(f"{text} {gap:8.1e}")


def main() -> None:
    """Measures every layer at every part of zeros."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=[name for name, *_ in CASES])
    parser.add_argument("--degrees", nargs="+", type=float, default=DEGREES)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("block_sparse", arguments.output)
    provider = providers.active()
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"dense by {provider.NAME} {provider.version()}",
        f"CPU milliseconds, medians of {arguments.rounds} rounds; ratios with range",
        "",
        f"{'':<44} inference{'':<30} training",
        f"{'':<20} {'inputs':<17} {'zeros':>5}"
        + f" {'dense':>8} {'sparse':>8}  {'dense / sparse':<20}" * 2
        + " difference",
    )
    for case in CASES:
        for degree in arguments.degrees:
            if not arguments.cases or case[0] in arguments.cases:
                measure(result, case, degree, arguments.rounds)
    result.save()


if __name__ == "__main__":
    main()
