"""The cost of a call of a ``TorchLayer`` beside that of the module alone.

    OMP_NUM_THREADS=1 python -m benchmarks.torch_layer_calls

Forward and backward of small modules, so that arithmetic takes little of the time. The
module alone is called by PyTorch. The layer is called by Chainer, and its backward
computes the same gradients, whole or in two halves. Gradients add up over the calls.

A graph of one call also pays for what each backward begins and ends with. With many
layers, their calls share that. In a stage of a pipeline, neighbouring layers are one
function of Chainer. What a layer alone cannot go below is shown by a function of
Chainer with the same inputs and parameters that computes nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chainer
import numpy as np
import torch
from torch import nn

from benchmarks.common.results import (
    Result,
    alternate,
    command,
    cpu_seconds,
    machine,
    ratios,
)
from chainer_kernels.catalogue import Backward
from divisible import Divisible
from divisible.backward.backprop import backward, backward_input
from divisible.backward.weight_gradients import WeightGradients
from torch_layers import TorchLayer

#: Microseconds that a call of a layer may take more than the module.
AIM = 40
MODULES = {
    "Linear": lambda: nn.Linear(8, 8),
    "ReLU": nn.ReLU,
    "Linear, ReLU": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0),
}


class Nothing(chainer.FunctionNode):
    """A function with the inputs of a layer, which returns the first of them.

    The gradients of its parameters are arrays that are there already.
    """

    taken_apart = Backward(is_splittable=True, has_arrays=True)

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the first array."""
        self._parameters = arrays[1:]
        return arrays[:1]

    def gradient_arrays(
        self, indexes: tuple[int, ...], output_gradients: Sequence[Any]
    ) -> list[Any]:
        """Returns the gradient of the output, and the arrays of the parameters."""
        found = [*output_gradients, *self._parameters]
        return [found[i] for i in indexes]


def variants(
    modules: Sequence[nn.Module], n_graphs: int
) -> dict[str, Callable[[], None]]:
    """Returns functions that run modules one after the other, and their layers.

    Args:
        modules: The modules.
        n_graphs: How often each function runs all of them.
    """
    x = np.ones((4, 2, 8), np.float32)
    gy = np.ones_like(x)
    layers = Divisible(*map(TorchLayer, modules))
    params = [tuple(layer.params()) for layer in layers]
    tensor, gradient = torch.from_numpy(x), torch.from_numpy(gy)

    def alone() -> None:
        for module in modules:
            module.zero_grad()
        for _ in range(n_graphs):
            h = tensor.detach().requires_grad_()
            for module in modules:
                h = module(h)
            h.backward(gradient)

    def as_layers(is_split: bool = False, is_stage: bool = False) -> None:
        gradients = WeightGradients(layers.params)
        gradients.begin()
        for _ in range(n_graphs):
            h = leaf = chainer.Variable(x)
            if is_stage:
                h, _ = layers.run(h, {}, chains=True)
            else:
                for layer in layers:
                    h = layer(h)
            if is_split:
                _, pending = backward_input([leaf], [h], [gy], gradients)
                pending.run()
            else:
                backward([leaf], [h], [gy], gradients)
        gradients.finish()

    def nothing() -> None:
        gradients = WeightGradients(layers.params)
        gradients.begin()
        for _ in range(n_graphs):
            h = leaf = chainer.Variable(x)
            for own in params:
                (h,) = Nothing().apply((h, *own))
            backward([leaf], [h], [gy], gradients)
        gradients.finish()

    found: dict[str, Callable[[], None]] = {
        "module": alone,
        "layer": as_layers,
        "layer, two halves": lambda: as_layers(is_split=True),
        "Chainer, nothing computed": nothing,
    }
    if len(modules) > 1:
        found["in a stage"] = lambda: as_layers(is_stage=True)
        found["in a stage, two halves"] = lambda: as_layers(True, True)
    return found


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=192, help="in each round")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument(
        "--chain", type=int, default=16, help="layers of a stage, beside one alone"
    )
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=[*MODULES])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1")
    result = Result("torch_layer_calls", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "chainer", "torch"),
        f"{arguments.rounds} rounds of {arguments.calls} calls, forward and backward;"
        f" CPU time of the fastest round; more: microseconds a call beside the module"
        f" alone, aim {AIM}; ratio: median (min..max) of the rounds",
    )
    for name in arguments.modules:
        make = MODULES[name]
        for n_layers in (1, arguments.chain):
            torch.manual_seed(0)
            n_graphs = -(-arguments.calls // n_layers)
            made = variants([make() for _ in range(n_layers)], n_graphs)
            for each in made.values():
                each()
            seconds = alternate(made, arguments.rounds, cpu_seconds)
            n_calls = n_graphs * n_layers
            us = {kind: 1e6 * min(found) / n_calls for kind, found in seconds.items()}
            graph = f"{n_layers} in a graph"
            result.write("", f"{name}, {graph}".ljust(42) + "us a call   more   ratio")
            for kind, found in seconds.items():
                result.write(
                    f"  {kind:<40} {us[kind]:8.1f} {us[kind] - us['module']:6.1f}"
                    f"   {ratios(found, seconds['module'])}"
                )
    result.save()


if __name__ == "__main__":
    main()
