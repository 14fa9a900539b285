"""Epochs of training and test, by the steps of a pipeline."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import chainer
import numpy as np
from data import Images

from divisible.schedules import Timeline
from pipeline import Pipeline, RunStatus


class Epoch(NamedTuple):
    """The results of an epoch, by the names that `Pipeline.step` gives.

    Attributes:
        number: Number of the epoch, from 1 on.
        train: Means over the training samples, while the model was learning.
        test: Means over the test samples, after the training.
        seconds: Seconds of the training.
        timeline: Timeline of the last minibatch of the training.
    """

    number: int
    train: dict[str, float]
    test: dict[str, float]
    seconds: float
    timeline: Timeline


class Mean:
    """The mean over samples of what minibatches of any size reported."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._n = 0

    def add(self, means: dict[str, float], n: int) -> None:
        """Adds the means over ``n`` samples."""
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + n * value
        self._n += n

    def report(self) -> dict[str, float]:
        """Returns the means so far."""
        return {name: value / self._n for name, value in self._sums.items()}


def epochs(
    pipe: Pipeline,
    optimizer: chainer.Optimizer,
    train: Images,
    test: Images,
    args: argparse.Namespace,
    shuffle: np.random.RandomState,
    n_done: int = 0,
) -> Iterator[Epoch]:
    """Trains, and tests after every epoch.

    Args:
        pipe: Pipeline of this rank.
        optimizer: Optimizer of all stages of this rank.
        train: Training set, in another order each epoch.
        test: Test set.
        args: The options.
        shuffle: Object that orders the samples.
        n_done: Number of epochs before, in a run that is resumed.

    Yields:
        Results of each epoch.
    """
    # For "divisible watch" in another terminal, and a line in this one.
    with RunStatus(pipe, args.out) as status:
        for number in range(n_done + 1, args.epoch + 1):
            train_mean, test_mean = Mean(), Mean()
            start = time.perf_counter()
            order = shuffle.permutation(len(train.x))
            for begin in range(0, len(order), args.batchsize):
                batch = order[begin : begin + args.batchsize]
                # If the plan has replicas, each gets its part.
                x, t = pipe.my_part(train.x[batch], train.t[batch])
                result = pipe.step(x, t)
                train_mean.add(result, len(batch))
                with pipe.recorded_update():
                    optimizer.update()
                done = number - 1 + (begin + len(batch)) / len(order)
                status.note(result, epoch=done, share=done / args.epoch)
            seconds = time.perf_counter() - start
            timeline = pipe.timeline()
            for begin in range(0, len(test.x), args.batchsize):
                x, t = (a[begin : begin + args.batchsize] for a in test)
                test_mean.add(pipe.evaluate(*pipe.my_part(x, t)), len(x))
            yield Epoch(
                number, train_mean.report(), test_mean.report(), seconds, timeline
            )
