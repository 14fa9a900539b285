"""The steps of a rank, each ready to be timed.

::

    undivided      plain Chainer on the first host, while the others sleep
    as printed     Fig. 4: all forwards, then all backwards, blocking messages of
                   ChainerMN
    pipelined      `Pipeline` with a schedule

    and after each of them, if the point says so, the update of this rank's parameters
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import chainer
import chainermn
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import paper_loop, undivided_step
from benchmarks.paper_tables.models import build, minibatch
from benchmarks.paper_tables.points import FIG4, LEARNING_RATE, SERIAL, Point
from divisible import Divisible
from pipeline import Pipeline
from pipeline.step.runner import synchronize

#: Seconds that a rank may wait for another: the smallest share of a core is slow.
TIMEOUT = 3600.0

#: Samples of a first step, which is not timed.
FEW = 2

Train = Callable[[np.ndarray, np.ndarray], Any]


class Step:
    """A step of this rank.

    Args:
        train: Function that trains on samples and labels.
        x: Samples of the minibatch.
        t: Labels of the minibatch.
        device: Device that computes.
    """

    def __init__(
        self, train: Train, x: np.ndarray, t: np.ndarray, device: chainer.backend.Device
    ) -> None:
        self._train, self._device = train, device
        self._data = device.send((x, t))

    def __call__(self) -> None:
        """Trains on the minibatch."""
        self._train(*self._data)
        synchronize(self._device)

    def prepare(self) -> None:
        """Trains on a few samples.

        In a first step kernels are compiled, and ranks agree on the shapes of messages.
        """
        self._train(*(array[:FEW] for array in self._data))


class NotFiniteError(ArithmeticError):
    """Parameters have overflowed, so that times would be those of infinite numbers."""


class Steps:
    """The steps of one rank, made when they are first asked for, and then kept.

    Pipelines of the same cut share a stage. All of them are freed at the end of a
    ``with``.

    Args:
        comm: Communicator with a rank on each host.
        learning_rate: Learning rate of the updates.
        device: Name of this rank's device.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        learning_rate: float = LEARNING_RATE,
        device: str = "@numpy",
    ) -> None:
        self._comm = comm
        self._device = chainer.get_device(device)
        self._learning_rate = learning_rate
        self._closing = contextlib.ExitStack()
        self._steps: dict[Point, Step] = {}
        self._stages: dict[Any, Divisible] = {}
        # The stage of this rank at each point.
        self._trained: dict[Point, Divisible] = {}

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def __contains__(self, point: Point) -> bool:
        """Returns whether the step of a point has been made."""
        return point in self._steps

    def get(self, point: Point, cuts: list[int]) -> Step:
        """Returns the step of a point, which does nothing if others work for this rank.

        Args:
            point: Point whose step to take.
            cuts: Positions of the cuts.
        """
        if point not in self._steps:
            make = {SERIAL: self._undivided, FIG4: self._as_printed}
            train = make.get(point.schedule, self._pipelined)(point, cuts)
            train = self._with_update(point, train)
            data = minibatch(point, point.batch)
            self._steps[point] = Step(train, *data, self._device)
        return self._steps[point]

    def check(self, point: Point) -> None:
        """Checks on all ranks that the parameters of a point are finite.

        Raises:
            NotFiniteError: If those of this rank are not.
        """
        if point in self._trained:
            for path, param in self._trained[point].namedparams():
                if not np.isfinite(param.array).all():
                    raise NotFiniteError(
                        f"rank {self._comm.rank}: {path} is not finite after steps of"
                        f" {point}. Lower the learning rate {self._learning_rate:g}"
                    )

    def _undivided(self, point: Point, cuts: list[int]) -> Train:
        if self._comm.rank > 0:
            return _nothing
        stage = self._stage(point, SERIAL, None, None)
        return lambda x, t: undivided_step(stage, x, t)()

    def _as_printed(self, point: Point, cuts: list[int]) -> Train:
        rank = self._comm.rank
        stage = self._stage(point, FIG4, *cuts[rank : rank + 2])
        train_minibatch = paper_loop().train_minibatch
        comm = chainermn.create_communicator("naive", self._comm)

        def train(x: np.ndarray, t: np.ndarray) -> None:
            stage.cleargrads()
            train_minibatch(comm, stage, x, t, len(x), point.samples)

        return train

    def _pipelined(self, point: Point, cuts: list[int]) -> Train:
        rank, n_stages = self._comm.rank, len(cuts) - 1
        takes_part = rank < n_stages
        comm = self._comm.Split(0 if takes_part else MPI.UNDEFINED, rank)
        if not takes_part:
            return _nothing
        self._closing.callback(comm.Free)
        pipe = Pipeline(
            self._stage(point, None, *cuts[rank : rank + 2]),
            comm,
            n_microbatches=point.microbatches,
            schedule=point.schedule,
            timeout=TIMEOUT,
        )
        self._closing.enter_context(pipe)
        return pipe.step

    def _stage(
        self, point: Point, way: str | None, start: int | None, end: int | None
    ) -> Divisible:
        """Returns layers of the model for a point.

        Args:
            point: Point whose model to cut.
            way: Way with a stage of its own, because the way frees gradients, which
                pipelines keep; ``None`` for pipelines.
            start: First layer.
            end: Layer after the last one.
        """
        key = (point.model, point.size, way, start, end)
        if key not in self._stages:
            self._stages[key] = build(point).divide(start, end)
            self._stages[key].to_device(self._device)
        self._trained[point] = self._stages[key]
        return self._stages[key]

    def _with_update(self, point: Point, train: Train) -> Train:
        if not point.update or train is _nothing:
            return train
        optimizer = chainer.optimizers.SGD(self._learning_rate)
        optimizer.setup(self._trained[point])

        def train_and_update(x: np.ndarray, t: np.ndarray) -> None:
            train(x, t)
            optimizer.update()

        return train_and_update


def _nothing(x: np.ndarray, t: np.ndarray) -> None:
    """Does nothing, on a host that others work for."""
