"""What the training scripts share: their options, where to cut, and the epochs."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple, NoReturn

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from divisible import Divisible, Plan, partition, profile, schedules
from divisible.communication.aborting import (
    end_all_ranks,
    is_world_up,
    let_lower_ranks_speak,
)
from divisible.schedules import Schedule, Timeline
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.recomputation import CHECKPOINTS
from pipeline import Pipeline, SnapshotError

comm = MPI.COMM_WORLD

#: Options of every training script that must be positive.
COUNTS = ("epoch", "batchsize", "microbatches")


class Samples(NamedTuple):
    """A data set, samples along the first axis of each array.

    Attributes:
        x: What the first layer gets.
        t: What the loss compares the last layer's output with.
    """

    x: np.ndarray
    t: np.ndarray


class Epoch(NamedTuple):
    """What came of an epoch, by the names that `Pipeline.step` gives.

    Attributes:
        number: From 1 on.
        train: Means over the training samples, while the model was learning.
        test: Means over the test samples, after that.
        seconds: How long the training took.
        timeline: Of the last minibatch of the training.
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

    def report(self, prefix: str = "") -> dict[str, float]:
        """Returns the means so far."""
        return {prefix + name: value / self._n for name, value in self._sums.items()}


class Parser(argparse.ArgumentParser):
    """Reads options; what is wrong with them ends all ranks and is said once."""

    def __init__(self, description: str) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def _print_message(self, message, file=None):
        # The help, which every rank is asked for.
        if comm.rank == 0:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, on whichever rank it is, and ends all ranks."""
        if not is_world_up():
            super().error(message)
        text = f"{self.format_usage()}{self.prog}: error: {message}\n"
        let_lower_ranks_speak()
        end_all_ranks("exits with 2", lambda: sys.stderr.write(text), code=2)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Says without a traceback what cannot be done as it was asked for."""
        try:
            yield
        except (OSError, SnapshotError, ValueError) as error:
            self.error(str(error))

    def add_pipeline_arguments(
        self, epochs: int, batchsize: int, microbatches: int = 4
    ) -> None:
        """Adds the options of every training script.

        Args:
            epochs: The default number of epochs.
            batchsize: The default number of samples of a minibatch.
            microbatches: The default number of its parts.
        """
        add = self.add_argument
        add("--epoch", type=int, default=epochs, help="number of epochs")
        add("--batchsize", type=int, default=batchsize, help="samples of a minibatch")
        add("--microbatches", type=int, default=microbatches, help="of a minibatch")
        add("--schedule", choices=schedules.NAMES, default="1f1b")
        add(
            "--checkpoint",
            choices=CHECKPOINTS,
            default="never",
            help="which microbatches' activations to compute again for the backward",
        )
        add(
            "--cuts",
            type=cuts,
            help="positions to cut at, such as 7,15,26 for 4 ranks; auto: measure the"
            " layers first, for stages of equal time; default: stages of equally many"
            " layers",
        )
        add("--plan", help="file of a plan, made by divisible plan; it says all that")
        add("--seed", type=int, default=0, help="of weights, dropout, order of samples")

    def check_positive(self, args: argparse.Namespace, *names: str) -> None:
        """Refuses numbers below 1, and a seed out of range."""
        for name in names:
            if getattr(args, name) < 1:
                self.error(f"--{name} must be 1 at least, not {getattr(args, name)}")
        if not 0 <= args.seed < 2**32:
            self.error(f"--seed must be from 0 to 2**32 - 1, not {args.seed}")

    def check_installed(self, **needed: str) -> None:
        """Refuses to go on without packages.

        Args:
            needed: By a module's name what needs it.
        """
        for module, words in needed.items():
            if importlib.util.find_spec(module) is None:
                self.error(f"{words}: pip install 'divisible[examples]'")


def integers(text: str) -> list[int]:
    """Reads integers with commas between."""
    return [int(number) for number in text.split(",")]


def say(line: str) -> None:
    """Prints on one rank only."""
    if comm.rank == 0:
        print(line, flush=True)


def cuts(text: str) -> list[int] | str:
    """Reads positions with commas between, or ``auto``."""
    return text if text == "auto" else integers(text)


def cut_model(
    parser: Parser,
    args: argparse.Namespace,
    model: Divisible,
    train: Samples,
    lossfun: Callable = F.softmax_cross_entropy,
) -> tuple[Plan, Schedule, list[Divisible]]:
    """Cuts a model as asked for.

    Args:
        parser: Ends all ranks if the model cannot be cut like this.
        args: The options. Those that a plan answers become the plan's.
        model: The undivided model.
        train: What to measure the layers with.
        lossfun: Follows the last layer.

    Returns:
        The plan, its schedule, and the stages that the schedule gives to this rank.
    """
    with parser.refusing():
        plan = make_plan(args, model, train, lossfun)
        schedule = schedules.create(
            args.schedule, plan.n_stages, args.microbatches, comm.size
        )
    mine = schedule.rank_stages(comm.rank)
    return plan, schedule, [model.divide(*plan.range(number)) for number in mine]


def make_plan(
    args: argparse.Namespace, model: Divisible, train: Samples, lossfun: Callable
) -> Plan:
    """Says where to cut: as asked, or into stages of equally many layers.

    Raises:
        OSError: If there is no such plan.
        ValueError: If the model cannot be cut like this.
    """
    if args.plan is not None:
        plan = Plan.load(args.plan)
        if plan.replicas > 1:
            raise ValueError(
                f"{args.plan} is a plan for {plan.replicas} replicas, which are planned"
                f" only: make one without --replicas"
            )
        plan.check(model, comm.size)
        args.microbatches = plan.n_microbatches or args.microbatches
        args.schedule = plan.schedule or args.schedule
        args.checkpoint = plan.checkpoint
        return plan
    n_stages = CATALOGUE[args.schedule].stages_per_rank * comm.size
    if args.cuts is None or args.cuts == "auto":
        plan = Plan.uniform(len(model), n_stages)
        if args.cuts == "auto" and comm.rank == 0:
            # Of what one microbatch takes in each layer.
            n = -(-args.batchsize // args.microbatches)
            costs = profile(model, train.x[:n], train.t[:n], lossfun)
            plan = partition(costs, n_stages)
        # A rank that waits in a broadcast spins, and takes time from the layers that
        # rank 0 measures, if they share a core.
        measured = comm.Ibarrier()
        while not measured.Test():
            time.sleep(0.02)
        return comm.bcast(plan)
    plan = Plan([0, *args.cuts, len(model)])
    if plan.n_stages != n_stages:
        raise ValueError(
            f"--cuts makes {plan.n_stages} stages, but {args.schedule} on {comm.size}"
            f" ranks has {n_stages}; there must be one cut less than there are stages"
        )
    return plan


def epochs(
    pipe: Pipeline,
    optimizers: Sequence[chainer.Optimizer],
    train: Samples,
    test: Samples,
    args: argparse.Namespace,
    shuffle: np.random.RandomState | None = None,
    n_done: int = 0,
) -> Iterator[Epoch]:
    """Trains, and tests after every epoch.

    Args:
        pipe: Every rank's.
        optimizers: Of the stages of this rank.
        train: What to learn from, in another order each epoch.
        test: What to test on.
        args: The options.
        shuffle: Orders the samples; by default from ``args.seed``.
        n_done: How many epochs there were before, in a run that goes on.

    Yields:
        What came of each epoch.
    """
    if shuffle is None:
        shuffle = np.random.RandomState(args.seed)
    for number in range(n_done + 1, args.epoch + 1):
        train_mean, test_mean = Mean(), Mean()
        start = time.perf_counter()
        order = shuffle.permutation(len(train.x))
        for begin in range(0, len(order), args.batchsize):
            batch = order[begin : begin + args.batchsize]
            train_mean.add(pipe.step(train.x[batch], train.t[batch]), len(batch))
            for optimizer in optimizers:
                optimizer.update()
        seconds = time.perf_counter() - start
        timeline = pipe.timeline()
        for begin in range(0, len(test.x), args.batchsize):
            x, t = (a[begin : begin + args.batchsize] for a in test)
            test_mean.add(pipe.evaluate(x, t), len(x))
        yield Epoch(number, train_mean.report(), test_mean.report(), seconds, timeline)
