"""Memory and time of recomputation, measured against the simulator's prediction.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.recomputation

The same pipeline makes steps with `recompute` never, except_last and always, in turn.
Where a microbatch is recomputed, a stage holds only its input from forward to backward,
and runs the forward a second time just before the backward.

The prediction is the result of divisible.simulate for the very schedule that ran. Its
makespan is given the mean times of F, B, I and W in the measured timelines of `never`,
with R taking as long as F. Its peak memory is given the bytes that one microbatch holds
in a stage with its graph, and with its input alone. The measured peaks are those of
live arrays above parameters and gradients (tracemalloc, which NumPy reports to). Memory
of a single action, and arrays to receive in, come on top of the prediction.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from pathlib import Path

from mpi4py import MPI

from benchmarks.common.perceptron import (
    cut,
    measured_costs,
    minibatch,
    mlp,
    step_seconds,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.memory import MIB, held_bytes, peaks
from divisible import simulate
from divisible.schedules import Costs
from divisible.schedules.recomputation import RECOMPUTATIONS
from divisible.schedules.schedule_files import schedule_argument
from pipeline import Pipeline, abort_on_error

#: Seconds between two looks of a rank that waits for the next step.
PAUSE = 0.002


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--samples", type=int, default=128, help="in a microbatch")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--schedules",
        nargs="+",
        type=schedule_argument,
        default=["gpipe", "1f1b", "zb_h1"],
        metavar="SCHEDULE",
        help="names, or files with schedules of as many stages and microbatches",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    abort_on_error()
    result = Result("recomputation", arguments.output, silent=comm.rank != 0)
    result.write(
        command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{comm.size} ranks, {arguments.layers} layers of width {arguments.width}, "
        f"{arguments.microbatches} microbatches of {arguments.samples} samples; "
        f"{arguments.rounds} rounds; median (min..max)",
        "memory: MiB on each rank, from the first stage to the last",
    )
    stage = cut(mlp(arguments.width, arguments.layers), comm.size, comm.rank)
    n, samples = arguments.microbatches, arguments.samples
    data = minibatch(arguments.width, n * samples)
    held = comm.allgather(held_bytes(stage, comm.rank, arguments.width, samples))
    activation, pending = zip(*held)
    # The first stage's input is a part of the minibatch, which lives anyway.
    inputs = [0] + [arguments.width * samples * 4] * (comm.size - 1)
    memory_costs = Costs(
        1.0,
        1.0,
        1.0,
        activation_bytes=activation,
        pending_bytes=pending,
        checkpoint_bytes=inputs,
    )
    for schedule in arguments.schedules:
        name = getattr(schedule, "name", schedule)
        make = {
            mode: functools.partial(
                Pipeline,
                stage,
                comm,
                n_microbatches=n,
                schedule=schedule,
                recompute=mode,
            )
            for mode in RECOMPUTATIONS
        }
        seconds, timelines = time_modes(comm, make, data, arguments.rounds)
        costs = measured_costs(timelines, comm.size)
        gradients = sum(p.array.nbytes for p in stage.params()) / MIB
        result.write(
            "",
            f"{name:<12} {'step s':>7}  {'to never':<18} {'simulated':>9}  "
            "memory measured | predicted",
        )
        plain = simulate(make["never"]().schedule, costs).makespan
        for mode in RECOMPUTATIONS:
            live, _ = peaks(comm, make[mode], data)
            live = comm.gather(live - gradients)
            program = make[mode]().schedule
            time = simulate(program, costs).makespan / plain
            if live:
                predicted = simulate(program, memory_costs).peak_memory / MIB
                columns = (" ".join(f"{v:6.1f}" for v in c) for c in (live, predicted))
                result.write(
                    f"{mode:<12} {statistics.median(seconds[mode]):7.3f} "
                    f"{ratios(seconds[mode], seconds['never']):<19} {time:9.2f}  "
                    + " | ".join(columns)
                )
    result.save()


def time_modes(
    comm: MPI.Comm, make: dict[str, functools.partial], data: tuple, rounds: int
) -> tuple[dict[str, list[float]], list]:
    """Times the steps of all modes in turn.

    Returns:
        The seconds of each mode in every round, and the timelines of ``never``.
    """
    pipes = {mode: create() for mode, create in make.items()}
    timelines = []

    def seconds_of(mode: str) -> float:
        seconds = step_seconds(comm, lambda: pipes[mode].step(*data), PAUSE)
        if mode == "never":
            timelines.append(pipes[mode].timeline())
        return seconds

    for pipe in pipes.values():
        pipe.step(*data)
    seconds = alternate({mode: mode for mode in pipes}, rounds, seconds_of)
    for pipe in pipes.values():
        pipe.close()
    return seconds, timelines


if __name__ == "__main__":
    main()
