"""The cost of a call of a ``TorchLayer`` beside that of the module alone.

    OMP_NUM_THREADS=1 python -m benchmarks.torch_layer_calls

Forward and backward of small modules, so that arithmetic takes little of the time. The
module alone is called by PyTorch. The layer is called by Chainer, and its backward
computes the same gradients, whole or in two halves. Gradients add up over the calls.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import chainer
import numpy as np
import torch
from torch import nn

from benchmarks.common.results import Result, alternate, command, machine, ratios
from divisible.backward.backprop import backward, backward_input
from divisible.backward.weight_gradients import WeightGradients
from torch_layers import TorchLayer

#: Microseconds that a call of a layer may take more than the module.
AIM = 40
MODULES = {
    "Linear": lambda: nn.Linear(8, 8),
    "Linear, ReLU": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0),
}


def variants(module: nn.Module, n_calls: int) -> dict[str, Callable[[], None]]:
    """Returns functions that call a module and its layer ``n_calls`` times."""
    x = np.ones((4, 2, 8), np.float32)
    gy = np.ones_like(x)
    layer = TorchLayer(module)
    tensor, gradient = torch.from_numpy(x), torch.from_numpy(gy)

    def alone() -> None:
        module.zero_grad()
        for _ in range(n_calls):
            leaf = tensor.detach().requires_grad_()
            module(leaf).backward(gradient)

    def as_layer(is_split: bool) -> None:
        gradients = WeightGradients(layer.params)
        gradients.begin()
        for _ in range(n_calls):
            leaf = chainer.Variable(x)
            y = layer(leaf)
            if is_split:
                _, pending = backward_input([leaf], [y], [gy], gradients)
                pending.run()
            else:
                backward([leaf], [y], [gy], gradients)
        gradients.finish()

    return {
        "module": alone,
        "layer": lambda: as_layer(False),
        "layer, two halves": lambda: as_layer(True),
    }


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200, help="in each round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1")
    result = Result("torch_layer_calls", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "chainer", "torch"),
        f"{arguments.rounds} rounds of {arguments.calls} calls, forward and backward;"
        f" medians; more: microseconds a call beside the module alone, aim {AIM}",
        "",
    )

    def seconds_of(function: Callable[[], None]) -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    for name, make in MODULES.items():
        torch.manual_seed(0)
        made = variants(make(), arguments.calls)
        for each in made.values():
            each()
        seconds = alternate(made, arguments.rounds, seconds_of)
        result.write(f"{name:<26} {'us a call':>9} {'more':>6}   ratio")
        medians = {k: sorted(v)[len(v) // 2] for k, v in seconds.items()}
        for kind, median in medians.items():
            us = 1e6 * median / arguments.calls
            more = us - 1e6 * medians["module"] / arguments.calls
            share = ratios(seconds[kind], seconds["module"])
            result.write(f"  {kind:<24} {us:9.1f} {more:6.1f}   {share}")
    result.save()


if __name__ == "__main__":
    main()
