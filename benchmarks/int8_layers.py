"""Layers in 8 bits that multiply whole numbers, against float32.

    OMP_NUM_THREADS=1 python -m benchmarks.int8_layers

Each is a layer alone, or a network, in inference::

    dense      in float32
    stored     in 8 bits: a call makes float32 arrays of the weights, and rounds inputs
    int8       the same as `apply` leaves it: in whole numbers where that is faster

All three take turns in one run. The difference is that of the outputs of int8 and
stored, over the largest of them. In a network it is larger than in its layers: what
differs in the last bits may round to the other of two neighbours in the next layer.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
from pathlib import Path
from typing import Any
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np

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
from benchmarks.mixed_precision_accuracy import cnn
from chainer_kernels import providers, whole_numbers
from divisible import Divisible
from examples.train.models.vgg16 import VGG16
from model_compression import Compress, CompressionPlan, Quantize, apply, int8_report

CASES: list[Case] = [
    *linear_cases(
        (
            (64, 1024, 1024),
            (1, 1024, 1024),
            (256, 4096, 4096),
            (32, 784, 1000),
            (32, 1000, 10),
        )
    ),
    *convolution_cases(
        (
            (8, 64, 32, 64, 3),
            (16, 256, 8, 256, 3),
            (16, 512, 2, 512, 3),
            (8, 256, 14, 64, 1),
            (32, 3, 32, 64, 3),
        )
    ),
    ("digits", cnn, (64, 1, 8, 8)),
    (
        "VGG16",
        functools.partial(VGG16, batch_normalization=True, dropout=0.0),
        (16, 3, 32, 32),
    ),
]


def quantized(model: Any, x: np.ndarray) -> Any:
    """Returns a model as `apply` makes it, with ranges that fit an input."""
    plan = CompressionPlan([Quantize("int8", targets=["weight", "input"])])
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    compress = Compress(plan, optimizer)
    for iteration in (1, 2):
        model.cleargrads()
        F.sum(model(x)).backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
    return apply(model, plan)


def outputs(model: Any, x: np.ndarray, in_float32: bool) -> np.ndarray:
    """Returns the outputs in inference, perhaps as without whole numbers."""
    found = None if in_float32 else whole_numbers.instructions()
    offer = mock.patch.object(whole_numbers, "instructions", lambda: found)
    with offer, chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(x).array


def measure(result: Result, case: Case, rounds: int) -> None:
    """Measures a layer or a network, and writes its row."""
    name, make, shape = case
    np.random.seed(0)
    model = make()
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if not isinstance(model, Divisible):
        model = Divisible(model)
    # Training puts quantized layers into the model.
    small = quantized(copy.deepcopy(model), x)
    calls = {
        "dense": functools.partial(outputs, model, x, True),
        "stored": functools.partial(outputs, small, x, True),
        "int8": functools.partial(outputs, small, x, False),
    }
    found = {key: call() for key, call in calls.items()}
    seconds = alternate(calls, rounds, seconds_of)
    ms = {key: 1e3 * statistics.median(each) for key, each in seconds.items()}
    largest = np.abs(found["stored"]).max()
    gap = np.abs(found["int8"] - found["stored"]).max() / largest
    lines = int8_report(small).splitlines()
    n_used = sum("int8 product: used" in line for line in lines)
    result.write(
        f"{name:<24} {' x '.join(map(str, shape)):<17}"
        f" {ms['dense']:8.3f} {ms['stored']:8.3f} {ms['int8']:8.3f}"
        f"  {ratios(seconds['int8'], seconds['dense']):<19}"
        f" {ratios(seconds['int8'], seconds['stored']):<19}"
        f" {n_used:3d} of {len(lines):<2d} {gap:8.1e}"
    )


def main() -> None:
    """Measures every layer and network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=[name for name, *_ in CASES])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    name = whole_numbers.instructions()
    if name is None:
        parser.error(
            "no products of whole numbers here: see `python -m chainer_kernels`"
        )
    result = Result("int8_layers", arguments.output)
    provider = providers.active()
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{provider.NAME} {provider.version()}, whole numbers by {name}",
        f"CPU milliseconds, medians of {arguments.rounds} rounds; ratios with range",
        "",
        f"{'':<24} {'inputs':<17} {'dense':>8} {'stored':>8} {'int8':>8}"
        f"  {'int8 / dense':<19} {'int8 / stored':<19} {'used':<9} difference",
    )
    for case in CASES:
        if not arguments.cases or case[0] in arguments.cases:
            measure(result, case, arguments.rounds)
    result.save()


if __name__ == "__main__":
    main()
