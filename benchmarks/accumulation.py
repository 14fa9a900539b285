"""The costs of microbatches on one rank: CPU time relative to the undivided step.

    OMP_NUM_THREADS=1 python -m benchmarks.accumulation

A pipeline of one stage on one rank makes steps, forward and backward, undivided and in
microbatches. Nothing travels and no rank waits, so additional time is the cost of the
microbatches alone. They read and prepare weights for fewer rows, add up gradients of
weights, and run more Python. Weight gradients are computed for each microbatch, and
together for some or all of them. Microbatches pass through the stage one by one, or
several as one.

Each provider of products has a process of its own. In it the numbers of microbatches
take turns, and ratios are taken within a round. Times are CPU times of the one thread,
which other jobs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from benchmarks.against_torch.models import LanguageModel, Transformer, images, texts
from benchmarks.against_torch.workers import Worker
from benchmarks.common import quick
from benchmarks.common.perceptron import minibatch, mlp
from benchmarks.common.results import Result, alternate, command, machine, ratios
from divisible import Divisible
from divisible.schedules import Schedule, one_f_one_b
from divisible.schedules.groups import group_weights
from divisible.schedules.stage_groups import group_stages
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from pipeline import Pipeline

PROVIDERS = ("onednn", "blas")


class Way(NamedTuple):
    """A way to make a step.

    Attributes:
        n_microbatches: Number of microbatches.
        as_one: Number of microbatches that pass through the stage as one.
        group: Number of microbatches whose weight gradients are computed together.
    """

    n_microbatches: int
    as_one: int
    group: int

    @classmethod
    def all_of(
        cls, workload: Workload, stages: Sequence[int], groups: Sequence[int]
    ) -> dict[str, Way]:
        """Returns the ways of a workload by name, the undivided step first."""
        ways = [cls(1, 1, 1)]
        for m in workload.microbatches:
            ways += [
                # A group of 0 is the whole minibatch.
                cls(m, as_one, size or m)
                for as_one in stages
                for size in groups
                if as_one <= (size or m) <= m
            ]
        return {
            f"{way.n_microbatches:>13}{way.as_one:>8}{way.group:>9}": way
            for way in ways
        }

    @property
    def schedule(self) -> Schedule:
        """The forward and backward of each group, and weight gradients in groups."""
        alone = one_f_one_b(1, self.n_microbatches)
        return group_weights(group_stages(alone, self.as_one), self.group)


class Workload(NamedTuple):
    """A model and its minibatch.

    Attributes:
        title: Title of the model and the minibatch.
        build: Makes the model, a list of layers.
        batch: Makes the samples and the labels.
        microbatches: Numbers of microbatches.
    """

    title: str
    build: Callable[[], Divisible]
    batch: Callable[[], tuple[np.ndarray, np.ndarray]]
    microbatches: tuple[int, ...]


def _words(n_words: int, n: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    x, t = texts(n_words, n, length)
    # A text and its words are one sample, which is never cut.
    return x, t.reshape(n, length)


def workloads(quick: bool) -> dict[str, Workload]:
    """Returns all workloads by name, or small ones of the same names."""
    width, n_layers, size = (256, 4, 120) if quick else (1024, 32, 1200)
    n_images, n_residual, n_texts = (20, 20, 8) if quick else (80, 90, 16)
    return {
        "perceptron": Workload(
            f"perceptron, {n_layers} layers of {width}, batch {size}",
            lambda: mlp(width, n_layers),
            lambda: minibatch(width, size),
            (5, 20),
        ),
        "vgg16": Workload(
            f"VGG16, 32 x 32 pixels, batch {n_images}",
            VGG16,
            lambda: images(32, n_images),
            (5, 20),
        ),
        "resnet50": Workload(
            f"ResNet50, 32 x 32 pixels, batch {n_residual}",
            ResNet50,
            lambda: images(32, n_residual),
            (5, 20),
        ),
        "language_model": Workload(
            f"LSTM language model, 2 x 650 units, {n_texts} texts of 35 words",
            lambda: Divisible(LanguageModel()),
            lambda: _words(LanguageModel.N_WORDS, n_texts, 35),
            (8,),
        ),
        "transformer": Workload(
            f"Transformer, 4 layers of 256 units, {2 * n_texts} texts of 64 words",
            lambda: Divisible(Transformer(64)),
            lambda: _words(Transformer.N_WORDS, 2 * n_texts, 64),
            (8,),
        ),
    }


def _loss(y: chainer.Variable, t: np.ndarray) -> chainer.Variable:
    """Returns the mean loss of samples, or of all words of texts."""
    return F.softmax_cross_entropy(y, t.ravel())


class Steps:
    """Steps of a model in any number of microbatches, in a process of their own.

    Args:
        name: Name of the workload.
        quick: Whether to use the small workload of the name.
    """

    def __init__(self, name: str, quick: bool) -> None:
        chainer.global_config.dtype = np.float32
        np.random.seed(0)
        workload = workloads(quick)[name]
        self._model = workload.build()
        self._x, self._t = workload.batch()
        self._pipelines: dict[Way, Pipeline] = {}

    def seconds(self, way: Way) -> float:
        """Makes a step and returns its CPU seconds."""
        pipe = self._pipelines.get(way)
        if pipe is None:
            pipe = self._pipelines[way] = Pipeline(
                self._model.divide(None, None),
                MPI.COMM_SELF,
                schedule=way.schedule,
                lossfun=_loss,
                accfun=None,
            )
            # The first step gives layers sizes, compiles and allocates.
            pipe.step(self._x, self._t)
        start = time.process_time()
        pipe.step(self._x, self._t)
        return time.process_time() - start


def make_steps(*arguments: Any) -> Steps:
    """Makes the object of a process."""
    return Steps(*arguments)


def measure(
    result: Result, name: str, workload: Workload, arguments: argparse.Namespace
) -> None:
    """Measures a workload by each provider, and writes its part of the result."""
    result.write(
        f"{workload.title}",
        f"  {'':<10}{'microbatches':>13}{'as one':>8}{'W groups':>9}{'CPU ms':>9}"
        f"  ratio to the undivided step",
    )
    ways = Way.all_of(workload, arguments.as_one, arguments.groups)
    undivided = next(iter(ways))
    for provider in arguments.providers:
        worker = Worker(
            f"{name} by {provider}",
            make_steps,
            *(name, arguments.quick),
            environment={"CHAINER_KERNELS_PROVIDER": provider},
        )
        try:
            step = partial(worker.call, "seconds")
            seconds = alternate(ways, arguments.rounds, step)
        finally:
            worker.close()
        for name_of_way, values in seconds.items():
            result.write(
                f"  {provider:<10}{name_of_way}{1e3 * statistics.median(values):9.0f}"
                f"  {ratios(values, seconds[undivided])}"
            )
    result.write()


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=workloads(False), default=None)
    add("--providers", nargs="+", choices=PROVIDERS, default=list(PROVIDERS))
    add(
        "--as-one",
        nargs="+",
        type=int,
        default=[1],
        help="numbers of microbatches that pass through the stage as one",
    )
    add(
        "--groups",
        nargs="+",
        type=int,
        default=[1, 0],
        help="numbers of microbatches whose weight gradients are computed together; 0"
        " for all",
    )
    add("--rounds", type=int, default=3)
    add("--output", type=Path)
    arguments = quick.parse(parser, "accumulation", {}, text="small sizes")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error(
            "set OMP_NUM_THREADS=1: the CPU time of several threads is misleading"
        )
    result = Result("accumulation", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "chainer"),
        f"medians of {arguments.rounds} rounds; median (min..max) of ratios",
        "",
    )
    chosen = workloads(arguments.quick)
    for name in arguments.models or chosen:
        measure(result, name, chosen[name], arguments)
    result.save()


if __name__ == "__main__":
    main()
