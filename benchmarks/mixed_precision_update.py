"""An update in mixed precision against Chainer's in float32.

    OMP_NUM_THREADS=1 python -m benchmarks.mixed_precision_update

Many parameters, half of them matrices and half biases, with their gradients. Compared
are Chainer's optimizer on float32 parameters, its own mixed precision
(``use_fp32_update`` and dynamic ``loss_scaling``), and ``MixedPrecision`` with
``DynamicLossScale``, without hooks and with the two most common ones.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import chainer
import chainer.links as L
import numpy as np

from benchmarks.common.results import Result, alternate, command, cpu_seconds, machine
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16

SCALE = 1024.0


def layers(width: int, n_parameters: int, float16: bool) -> chainer.ChainList:
    """Makes layers with gradients that are scaled in float16."""
    model = chainer.ChainList(
        *[L.Linear(width, width) for _ in range(n_parameters // 2)]
    )
    if float16:
        to_float16(model)
    rng = np.random.RandomState(0)
    for param in model.params():
        gradient = rng.standard_normal(param.shape) * 1e-3 * (SCALE if float16 else 1)
        param.grad = gradient.astype(param.dtype)
        param._loss_scale = SCALE if float16 else None
    return model


def float32(name: str, width: int, n: int) -> Callable[[], None]:
    """Chainer in float32."""
    optimizer = getattr(chainer.optimizers, name)().setup(layers(width, n, False))
    return optimizer.update


def float32_with_hooks(name: str, width: int, n: int) -> Callable[[], None]:
    """Chainer in float32 with weight decay and clipping."""
    optimizer = getattr(chainer.optimizers, name)().setup(layers(width, n, False))
    add_hooks(optimizer)
    return optimizer.update


def chainer_mixed(name: str, width: int, n: int) -> Callable[[], None]:
    """Chainer's own mixed precision, whose gradients are copied to float32."""
    optimizer = getattr(chainer.optimizers, name)()
    optimizer.use_fp32_update()
    optimizer.setup(layers(width, n, True))
    optimizer.loss_scaling()
    return optimizer.update


def mixed(name: str, width: int, n: int) -> Callable[[], None]:
    """Mixed precision of this project."""
    optimizer = getattr(chainer.optimizers, name)()
    optimizer = MixedPrecision(
        optimizer, loss_scale=DynamicLossScale(SCALE, growth_interval=10**9)
    )
    optimizer.setup(layers(width, n, True))
    return optimizer.update


def mixed_with_hooks(name: str, width: int, n: int) -> Callable[[], None]:
    """The same with weight decay and clipping."""
    update = mixed(name, width, n)
    add_hooks(update.__self__)
    return update


def add_hooks(optimizer: chainer.Optimizer) -> None:
    """Adds the two hooks."""
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1e3))
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))


def main() -> None:
    """Measures every optimizer and width."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument(
        "--optimizers", nargs="+", default=["SGD", "MomentumSGD", "Adam", "AdaGrad"]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("mixed_precision_update", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{arguments.parameters} parameters; medians of {arguments.rounds} rounds;"
        " ratios to Chainer in float32, median (min..max)",
        "",
    )
    variants = [chainer_mixed, mixed]
    for width in arguments.widths:
        n = arguments.parameters // 2 * (width * width + width)
        result.write(f"layers of width {width}, {n / 1e6:.2f} M numbers")
        result.write(f"  {'':<12} {'float32 ms':>11}  Chainer's mixed   here")
        for name in arguments.optimizers:
            updates = {
                make.__name__: make(name, width, arguments.parameters)
                for make in (float32, *variants)
            }
            write_ratios(result, name, updates, arguments.rounds)
        for name in arguments.optimizers[:1]:
            updates = {
                "float32": float32_with_hooks(name, width, arguments.parameters),
                "mixed": mixed_with_hooks(name, width, arguments.parameters),
            }
            write_ratios(result, f"{name}, hooks", updates, arguments.rounds)
        result.write()
    result.save()


def write_ratios(
    result: Result, name: str, updates: dict[str, Callable], rounds: int
) -> None:
    """Measures some updates in turn and writes a line."""
    for update in updates.values():
        update()
        update()
    seconds = alternate(updates, rounds, cpu_seconds)
    base = seconds["float32"]
    columns = []
    for key in ("chainer_mixed", "mixed"):
        if key not in seconds:
            columns.append(f"{'':>17}")
            continue
        each = [a / b for a, b in zip(seconds[key], base)]
        columns.append(
            f"{statistics.median(each):5.2f} ({min(each):.2f}..{max(each):.2f})"
        )
    result.write(
        f"  {name:<12} {1e3 * statistics.median(base):11.2f} {'  '.join(columns)}"
    )


if __name__ == "__main__":
    main()
