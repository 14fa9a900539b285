"""The perceptron that the benchmarks train, and how they cut and time it."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Callable

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import HeNormal
from mpi4py import MPI

from benchmarks.common.results import ROOT, wall_seconds
from divisible import Divisible
from divisible.schedules import automatic
from divisible.schedules.costs import Costs
from divisible.schedules.timeline import Timeline

N_OUTPUTS = 10


def mlp(width: int, n_layers: int) -> Divisible:
    """Makes ``n_layers - 1`` times Linear and ReLU, and Linear to 10.

    The weights come with the first forward, so that a rank has only those of its stage.
    """
    layers: list[Any] = []
    for _ in range(n_layers - 1):
        layers += [L.Linear(None, width, initialW=HeNormal()), F.relu]
    return Divisible(*layers, L.Linear(width, N_OUTPUTS))


def minibatch(width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random samples and labels."""
    random = np.random.RandomState(0)
    x = random.randn(size, width).astype(np.float32)
    return x, random.randint(0, N_OUTPUTS, size).astype(np.int32)


def cut(model: Divisible, n_stages: int, stage: int) -> Divisible:
    """Returns one of ``n_stages`` stages with equally many Linear layers."""
    n_linear = (len(model) + 1) // 2
    start, end = (n_linear * i // n_stages * 2 for i in (stage, stage + 1))
    return model.divide(start, min(end, len(model)))


def cut_like_v(model: Divisible, n_ranks: int, rank: int) -> list[Divisible]:
    """Returns the two stages of a rank that ``'zb_v'`` wants there."""
    n_stages = 2 * n_ranks
    return [cut(model, n_stages, i) for i in (rank, n_stages - 1 - rank)]


def undivided_step(
    model: Divisible, x: np.ndarray, t: np.ndarray
) -> Callable[[], None]:
    """Returns the step of plain Chainer: forward, loss, backward."""

    def step() -> None:
        model.cleargrads()
        F.softmax_cross_entropy(model(x), t).backward()

    return step


def paper_loop() -> ModuleType:
    """Loads ``examples/paper_loop``: the paper's loop as printed."""
    path = ROOT / "examples" / "paper_loop" / "train.py"
    spec = importlib.util.spec_from_file_location("paper_loop", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_seconds(comm: MPI.Comm, step: Callable[[], Any], pause: float) -> float:
    """Times a step that all ranks take together.

    Args:
        comm: The ranks, each of which calls this.
        step: Step of this rank; does nothing if others work for the rank.
        pause: Seconds between two polls of a rank that waits for the others to start or
            to end.

    Returns:
        Seconds of the rank that took longest, the same on every rank.

    """
    # All begin at once, on one machine with one clock: a rank that sees late that the
    # others are there would have them wait for it, and that would count.
    lead = pause * (2 + math.log2(comm.size))
    start = _quiet_max(comm, time.perf_counter() + lead, pause)
    time.sleep(min(max(0.0, start - time.perf_counter()), 2 * lead))
    return _quiet_max(comm, wall_seconds(step), pause)


def _quiet_max(comm: MPI.Comm, value: float, pause: float) -> float:
    """Returns the greatest value of any rank; see `quiet_barrier`."""
    greatest = np.empty(1)
    request = comm.Iallreduce(np.array([value]), greatest, MPI.MAX)
    while not request.Test():
        time.sleep(pause)
    return float(greatest[0])


def measured_costs(
    timelines: Iterable[Timeline], n_stages: int, transfer: float = 0.0
) -> Costs:
    """Returns the costs of stages in measured timelines of one schedule.

    Args:
        timelines: Timelines of several runs.
        n_stages: Number of stages.
        transfer: Seconds of a message.

    Returns:
        The mean times of each stage. A backward that was not split counts as input
        gradients.
    """
    costs = automatic.measured_costs(timelines, n_stages)
    return dataclasses.replace(costs, transfer=transfer)
