"""The command ``divisible profile``."""

from __future__ import annotations

import os

import click
import numpy as np

from divisible.planning.measuring import profile
from divisible.planning.plots import plot_profile
from divisible.planning.tables import PROFILE_COLUMNS, profile_rows
from pipeline.command_line import console, options
from pipeline.command_line.model_argument import (
    blaming,
    make_model,
    make_optimizer,
)


@click.command("profile")
@click.argument("model", metavar="MODULE:MODEL")
@options.inputs(required=True)
@click.option(
    "--batch",
    type=options.Parsed("samples,...", options.positives),
    required=True,
    help="Samples of a microbatch. Several numbers make a profile for each.",
)
@click.option(
    "--loss/--no-loss",
    default=True,
    help="Whether softmax cross entropy follows the model.  [default: loss]",
)
@options.optimizer
@click.option(
    "--repeat",
    type=options.NUMBER,
    default=5,
    show_default=True,
    help="Number of times that each layer is measured.",
)
@click.option(
    "--device", default="@numpy", show_default=True, help="Device, as in Chainer."
)
@options.output("profile.json")
@options.plot
@options.speaking
def profile_command(
    model, inputs, batch, loss, optimizer, repeat, device, output, plot
) -> None:
    """Measures the costs of each layer of a model.

    MODEL is a subclass of Divisible, a function that makes a model, or a model, in a
    module or a file: models.vgg16:VGG16, models/vgg16.py:VGG16, 'mlp.py:MLP(1000,
    n_layers=8)'. The file is imported, so other work of a script belongs below if
    __name__ == "__main__". The inputs are random numbers; integer inputs are zeros.

    With several sizes of batch, each size is in the name of its file: profile-84.json.
    """
    with blaming(model):
        made = make_model(model)
    with blaming(f"--device {device}"):
        made.to_device(device)
    if optimizer is not None:
        optimizer = make_optimizer(optimizer)
    random = np.random.RandomState(0)
    for size in batch:
        x = tuple(_sample(random, (size, *shape), dtype) for shape, dtype in inputs)
        t = np.zeros(size, np.int32) if loss else None
        hint = ". If it is the loss that does not fit: --no-loss" if loss else ""
        what = f"measuring {size} samples"
        with (
            blaming(model, hint),
            console.plain_warnings(),
            console.show_progress(what) as progress,
        ):
            measured = profile(
                made, x, t, optimizer=optimizer, repeat=repeat, progress=progress
            )
        # Saved before it is printed: "| head" closes the pipe, which ends the command.
        measured.save(_numbered(output, size, batch))
        console.say_wrapped(f"{model}, {measured.headline}")
        rows = profile_rows(measured.layers, measured.loss)
        console.print_table(PROFILE_COLUMNS, rows, left=(1,))
        console.say(f"written to {_numbered(output, size, batch)}")
        if plot is not None:
            plot_profile(measured, _numbered(plot, size, batch), title=model)
            console.say(f"drawn to {_numbered(plot, size, batch)}")


def _sample(random: np.random.RandomState, shape: tuple, dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind != "f":
        return np.zeros(shape, dtype)
    return random.standard_normal(shape).astype(dtype)


def _numbered(path: str, size: int, sizes: list[int]) -> str:
    stem, ending = os.path.splitext(path)
    return path if len(sizes) == 1 else f"{stem}-{size}{ending}"
