"""The distribution of gradients against the ranges of formats (Figs. 1 and 9).

    OMP_NUM_THREADS=1 python -m benchmarks.data_parallel.distribution

A small network reads digits, in float32, on 4 simulated replicas. Then each line is of
the mean gradient of a parameter: its magnitudes, those of its ratios to the weights,
and how many elements each format of 8 bits makes zero. The same table ends the result
of `benchmarks.data_parallel.accuracy`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.results import Result, command, machine
from benchmarks.data_parallel.simulated import Replicas, Task, Way, exact_means
from chainer_kernels import float8
from divisible.communication.wire import WIRE

PERCENTILES = (1, 10, 50, 90, 99, 100)
BLOCK = 256
#: Steps before the gradients are looked at, and the learning rate.
STEPS, RATE = 300, 0.002
EPSILON, QUANTILE = 1e-5, 0.95
#: Wire dtypes of which it is told how many elements they lose.
SCALED = ("int8", "e4m3", "e5m2")


class Distribution(NamedTuple):
    """Gradients of one parameter.

    Attributes:
        elements: Number of elements.
        zeros: The part of them that are zero.
        percentiles: The decimal logarithms of the magnitudes that are not zero.
        of_ratio: The decimal logarithms of the ratios to the weights that are not zero.
        beyond: The part of the square of the ratios' norm that lies beyond their 0.95
            quantile, where Algorithm 1 saturates.
        vanish: Part of the elements that are not zero and become zero, by format.
    """

    elements: int
    zeros: float
    percentiles: list[float]
    of_ratio: list[float]
    beyond: float
    vanish: dict[str, float]

    @property
    def decades(self) -> float:
        """The decades from the 10 % quantile to the largest magnitude."""
        return self.percentiles[-1] - self.percentiles[1]


def distribution(gradient: np.ndarray, weights: np.ndarray) -> Distribution:
    """Returns the distribution of a gradient that is not zero.

    Args:
        gradient: Gradient, float32.
        weights: Weights, of the same shape.
    """
    flat = gradient.reshape(-1)
    ratio = relative(flat, weights.reshape(-1))
    magnitudes = np.abs(ratio)
    q = float(np.quantile(magnitudes, QUANTILE))
    squares = magnitudes.astype(np.float64) ** 2
    there = flat != 0
    vanish = {}
    if q:
        scaled = ratio * np.float32(float8.LARGEST / q)
        back = float8.decode(float8.encode(scaled, rounding="truncate"))
        vanish["Algorithm 1"] = _part(back == 0, there)
    for name in SCALED:
        wire = WIRE[name]
        back = wire.decode(wire.encode(flat, BLOCK), flat.size, BLOCK)
        vanish[name] = _part(back == 0, there)
    return Distribution(
        flat.size,
        1 - there.mean(),
        _logarithms(flat),
        _logarithms(ratio),
        float(squares[magnitudes > q].sum() / squares.sum()),
        vanish,
    )


def relative(gradient: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns what Algorithm 1 sends: the gradient relative to the weights."""
    return gradient / (np.abs(weights) + np.float32(EPSILON))


def table(
    gradients: dict[str, np.ndarray], weights: dict[str, np.ndarray]
) -> list[str]:
    """Returns the lines of a table of all parameters."""
    heads = "".join(f"{f'{p} %':>7}" for p in PERCENTILES)
    lines = [
        f"{'':10} {'elements':>8} {'zero':>5}  {'log10 |gradient| at':42} "
        f" {'log10 |ratio| at':42}  beyond  become zero",
        f"{'':26} {heads}  {heads}  the q   Algorithm 1  {'  '.join(SCALED)}",
    ]
    for name, gradient in gradients.items():
        found = distribution(gradient, weights[name])
        first, second = (
            "".join(f"{value:7.1f}" for value in values)
            for values in (found.percentiles, found.of_ratio)
        )
        gone = " ".join(f"{part:6.1%}" for part in found.vanish.values())
        lines.append(
            f"{name.strip('/'):10} {found.elements:8} {found.zeros:5.0%}  {first} "
            f" {second}  {found.beyond:6.0%}  {gone}"
        )
    return lines


def measure(task: Task) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Trains in float32, and returns by parameter the gradients and the weights.

    Args:
        task: Settings of the training.
    """
    replicas = Replicas(task, 0)
    replicas.train_common()
    replicas.train(Way())
    gradients = exact_means(replicas.gradients(task.steps - 1))
    return gradients, {name: p.array for name, p in replicas.model.namedparams()}


def write(
    result: Result,
    steps: int,
    gradients: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
) -> None:
    """Writes the table of all parameters, and the range that a format needs.

    Args:
        result: Result to write to.
        steps: Number of steps before.
        gradients: Gradients by parameter.
        weights: Weights by parameter.
    """
    result.write("", f"gradients after {steps} steps in float32")
    result.write(*table(gradients, weights))
    decades = [distribution(gradients[n], weights[n]).decades for n in gradients]
    result.write(
        f"from the 10 % quantile to the largest: {min(decades):.1f} to"
        f" {max(decades):.1f} decades; e5m2 has {np.log10(57344 * 2.0**16):.1f}"
    )


def main() -> None:
    """Trains, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="before the gradients")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    task = Task(lr=RATE)
    if arguments.steps <= task.common:
        parser.error(f"--steps must be more than {task.common}, the common steps")
    result = Result("data_parallel_distribution", arguments.output)
    result.write(command("OMP_NUM_THREADS=1"), machine("numpy", "numba", "chainer"))
    gradients, weights = measure(task._replace(steps=arguments.steps))
    write(result, arguments.steps, gradients, weights)
    result.save()


def _logarithms(values: np.ndarray) -> list[float]:
    there = np.abs(values[values != 0]).astype(np.float64)
    return np.percentile(np.log10(there), PERCENTILES).tolist()


def _part(some: np.ndarray, of: np.ndarray) -> float:
    return float((some & of).sum() / max(1, of.sum()))


if __name__ == "__main__":
    main()
