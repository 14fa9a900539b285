"""Ranks of grids on emulated hosts, which train in several ways that take turns."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple

import chainer
from mpi4py import MPI

from benchmarks.common.perceptron import cut, minibatch, mlp, step_seconds
from benchmarks.common.probes import busy_seconds, link, slowed
from benchmarks.common.results import alternate
from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Machine, Plan, Profile, best_plan, profile
from pipeline import Pipeline

#: Seconds between two looks of a rank that waits for the others to start or end.
PAUSE = 0.01
#: Seconds that a rank may wait for another.
TIMEOUT = 120.0
#: Exchanges that there are: none, after the step, during it.
ALONE, AFTER, DURING = "alone", "after", "during"
#: Steps of each way before those that count: they make buffers, learn how large the
#: messages are, and compare the replicas.
WARM_UP = 3


class Job(NamedTuple):
    """The work of all ranks.

    Attributes:
        task: ``'overlap'``, ``'profile'`` or ``'plans'``.
        width: Width of the perceptron's layers.
        layers: Number of layers that have weights.
        batch: Samples of a minibatch, of all replicas.
        rounds: Steps of each way.
        microbatches: Microbatches of a replica; for plans the largest number.
        schedules: Schedules of the task overlap.
        exchange_dtypes: Dtypes on the wire of the task plans.
        sizes: Samples of a microbatch at which layers are profiled.
        files: Files of these profiles.
        busy: Seconds that all hosts compute, in order to measure their speed then.
    """

    task: str
    width: int
    layers: int
    batch: int
    rounds: int
    microbatches: int
    schedules: tuple[str, ...] = ()
    exchange_dtypes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    busy: float = 15.0


class Overlapped(NamedTuple):
    """The result of training with one schedule.

    Attributes:
        seconds: Seconds of each step and update, by `ALONE`, `AFTER` and `DURING`.
        report: Report of the optimizer that exchanges during the step.
        sent: Bytes that the first rank sent for an exchange.
    """

    seconds: dict[str, list[float]]
    report: str
    sent: int


class Planned(NamedTuple):
    """The result of training by one plan.

    Attributes:
        name: Replicas, ranks of each, and the dtype on the wire.
        headline: The plan in words.
        predicted: Seconds of a step.
        seconds: Seconds of each step and update.
    """

    name: str
    headline: str
    predicted: float
    seconds: list[float]


class Trainer:
    """A rank that trains in one way.

    Args:
        grid: The grid.
        stage: Stage of this rank.
        job: Work of all ranks.
        options: Options of the optimizer; ``None`` for one that exchanges nothing.
        **of_pipe: Options of the pipeline.
    """

    def __init__(
        self,
        grid: Grid,
        stage: Divisible,
        job: Job,
        options: dict[str, Any] | None,
        **of_pipe: Any,
    ) -> None:
        self._pipe = Pipeline(stage, grid, accfun=None, timeout=TIMEOUT, **of_pipe)
        self.optimizer = chainer.optimizers.SGD(1e-3)
        self._exchanges = options is not None
        if self._exchanges:
            self.optimizer = create_multi_node_optimizer(
                self.optimizer,
                grid.data,
                pipeline=self._pipe,
                timeout=TIMEOUT,
                minimum=0,
                **options,
            )
        self.optimizer.setup(stage)
        # All have the same, so that nothing but the exchange differs.
        self._data = minibatch(job.width, job.batch // grid.n_replicas)

    def step(self) -> None:
        """Trains with a minibatch."""
        self._pipe.step(*self._data)
        self.optimizer.update()

    def close(self) -> None:
        """Frees communicators; a call of all ranks."""
        if self._exchanges:
            self.optimizer.close()
        self._pipe.close()


def work(job: dict[str, Any]) -> Any:
    """Runs on each host; the answer of the first one counts."""
    chosen = Job(**job)
    tasks: dict[str, Callable] = {
        "overlap": overlap,
        "profile": make_profiles,
        "plans": plans,
    }
    return tasks[chosen.task](MPI.COMM_WORLD, chosen)


def overlap(comm: MPI.Comm, job: Job) -> dict[str, Overlapped]:
    """Trains two replicas with exchanges during the step, after it, and without.

    Args:
        comm: Communicator of an even number of ranks.
        job: Work of all ranks.

    Returns:
        The result of each schedule.
    """
    options = {ALONE: None, AFTER: {"overlap": False}, DURING: {}}
    with Grid(comm, comm.size // 2) as grid:
        trainers = {}
        for schedule in job.schedules:
            for way, given in options.items():
                model = mlp(job.width, job.layers)
                stage = cut(model, grid.n_pipeline, grid.pipeline.rank)
                of_pipe = {"n_microbatches": job.microbatches, "schedule": schedule}
                trainers[schedule, way] = Trainer(grid, stage, job, given, **of_pipe)
        seconds = _in_turn(comm, trainers, job.rounds)
        found = {}
        for schedule in job.schedules:
            optimizer = trainers[schedule, DURING].optimizer
            of_schedule = {way: seconds[schedule, way] for way in options}
            found[schedule] = Overlapped(
                of_schedule, optimizer.overlap_report, optimizer.exchange.sent_bytes
            )
        for trainer in trainers.values():
            trainer.close()
    return found


def make_profiles(comm: MPI.Comm, job: Job) -> None:
    """Measures the layers on a host of its own."""
    for file, n in zip(job.files, job.sizes):
        data = minibatch(job.width, n)
        profile(mlp(job.width, job.layers), *data, repeat=9).save(file)


def plans(comm: MPI.Comm, job: Job) -> dict[str, Any]:
    """Plans grids of several shapes, and trains on each.

    Args:
        comm: Communicator of all ranks.
        job: Work of all ranks.
    """
    network, profiles = link(comm), [Profile.load(file) for file in job.files]
    model = mlp(job.width, job.layers)
    stage = cut(model, comm.size, comm.rank)
    largest = max(profiles, key=lambda each: each.n_samples)
    x, _ = minibatch(job.width, largest.n_samples)
    busy = sum(busy_seconds(comm, stage, x, PAUSE, job.busy))
    slower = busy / sum(layer.seconds for layer in largest.layers)
    profiles = [slowed(each, slower) for each in profiles]
    chosen: dict[str, Plan] = {}
    for exchange_dtype in job.exchange_dtypes:
        for n in range(1, comm.size + 1):
            if comm.size % n == 0:
                replicas = comm.size // n
                chosen[f"{replicas} x {n}, {exchange_dtype}"] = best_plan(
                    profiles,
                    Machine(comm.size, network=network),
                    batch=job.batch,
                    microbatches=range(1, job.microbatches + 1),
                    schedules=["1f1b"],
                    recompute=["never"],
                    pipeline_ranks=[n],
                    exchange_dtype=exchange_dtype,
                    replicas=(replicas, replicas),
                )
    # Measurements of their own may differ between ranks.
    chosen = comm.bcast(chosen)
    grids = {name: Grid.of(plan, comm) for name, plan in chosen.items()}
    trainers = {}
    for name, plan in chosen.items():
        grid = grids[name]
        stage = mlp(job.width, job.layers).divide(*plan.range(grid.pipeline.rank))
        options = {"exchange_dtype": plan.exchange_dtype} if plan.replicas > 1 else None
        of_pipe = {"n_microbatches": plan.n_microbatches, "schedule": plan.schedule}
        trainers[name] = Trainer(grid, stage, job, options, **of_pipe)
    seconds = _in_turn(comm, trainers, job.rounds)
    for trainer in trainers.values():
        trainer.close()
    for grid in grids.values():
        grid.close()
    return {
        "bandwidth": network.bandwidth,
        "latency": network.latency,
        "slower": slower,
        "plans": [
            Planned(name, plan.headline, plan.step_seconds, seconds[name])
            for name, plan in chosen.items()
        ],
    }


def _in_turn(
    comm: MPI.Comm, trainers: dict[Any, Trainer], rounds: int
) -> dict[Any, list[float]]:
    """Returns the seconds of each trainer's steps."""
    seconds_of = partial(_seconds, comm)
    alternate(trainers, WARM_UP, seconds_of)
    return alternate(trainers, rounds, seconds_of)


def _seconds(comm: MPI.Comm, trainer: Trainer) -> float:
    return step_seconds(comm, trainer.step, PAUSE)
