"""Trains a model undivided and as a pipeline, and compares the losses.

    mpiexec -n 2 python -m benchmarks.old_repositories.on_two_ranks SETTINGS.json

Dropout is off in both, since a pipeline draws masks in its own order.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from benchmarks.old_repositories.drivers.with_model import made_up, variables
from divisible import from_chain
from pipeline import Pipeline, abort_on_error

STEPS = 3
RATE = 0.01


def mean_square(*outputs_and_target):
    """Returns the mean square of all that a model returns, one by one or as a tuple."""
    *outputs, _ = outputs_and_target
    return sum(F.mean(each * each) for y in outputs for each in variables(y))


def make(settings: dict):
    """Returns the model, with the same weights in every call."""
    np.random.seed(1)
    module = importlib.import_module(settings["module"])
    model = eval(settings["expression"], dict(vars(module)))
    return model, getattr(model, settings["call"] or "__call__")


def serial(settings: dict, xs: list, t, lossfun) -> list[float]:
    """Returns the losses of the undivided model."""
    model, call = make(settings)
    # Weights of links without sizes are drawn in the first call, here and below.
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        call(*xs)
    optimizer = chainer.optimizers.SGD(RATE).setup(model)
    losses = []
    for _ in range(STEPS):
        loss = lossfun(call(*xs), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses


def divided(settings: dict, xs: list, t, lossfun) -> tuple[list[float], int]:
    """Returns the losses of the pipeline, and the number of its layers."""
    comm = MPI.COMM_WORLD
    model, call = make(settings)
    x = xs[0] if len(xs) == 1 else tuple(xs)
    forward = call if settings["call"] else None
    # From here on, what a user writes.
    layers = from_chain(model, x, forward=forward)
    cut = len(layers) // 2
    stage = layers.divide(*((0, cut), (cut, None))[comm.rank])
    pipe = Pipeline(stage, comm, n_microbatches=1, lossfun=lossfun, accfun=None)
    optimizer = pipe.setup(chainer.optimizers.SGD(RATE))
    losses = []
    for _ in range(STEPS):
        losses.append(pipe.step(x, t)["loss"])
        optimizer.update()
    return losses, len(layers)


def main() -> None:
    """Compares the losses, and writes them on the first rank."""
    abort_on_error()
    settings = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, os.getcwd())
    F.dropout = chainer.functions.noise.dropout.dropout = lambda x, *a, **k: x
    random = np.random.RandomState(0)
    xs = [made_up(text, random) for text in settings["inputs"]]
    name = settings["loss"]
    if name == "mean_square":
        t, lossfun = np.zeros(len(xs[0]), np.int32), mean_square
    else:
        t, lossfun = made_up(settings["target"], random), getattr(F, name)
    alone = serial(settings, xs, t, lossfun)
    together, n_layers = divided(settings, xs, t, lossfun)
    if MPI.COMM_WORLD.rank == 0:
        record = {"serial": alone, "pipeline": together, "layers": n_layers}
        Path(settings["output"]).write_text(json.dumps(record))


if __name__ == "__main__":
    main()
