"""Peak memory of 1F1B against GPipe as the number of microbatches grows.

    OMP_NUM_THREADS=1 mpiexec -n 4 python -m benchmarks.memory

The size of the microbatch stays the same, so a minibatch of more microbatches has more
samples. GPipe holds the activations of every microbatch, 1F1B those of at most as many
as there are stages.

Each rank measures two peaks, above parameters, gradients and the minibatch itself. One
is that of live arrays, including arrays to receive in, by tracemalloc, which NumPy
reports to. The other is that of resident memory (VmHWM). The prediction is the peak of
divisible.simulate, given the bytes that one microbatch holds in a stage until its
backward, and until its weight gradients. Memory of a single action comes on top of it.
Resident memory can grow by less, because pages that the process had before are reused.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import gc
import tracemalloc
from pathlib import Path
from typing import Callable

from mpi4py import MPI

from benchmarks.common.perceptron import cut, minibatch, mlp
from benchmarks.common.results import Result, command, machine, quiet_barrier
from divisible import Divisible, simulate
from divisible.schedules import Costs
from pipeline import Pipeline, abort_on_error

MIB = 2**20


def resident(field: str) -> float:
    """Reads this process's resident memory in MiB: ``VmRSS``, or its peak ``VmHWM``."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(float(line.split()[1]) / 1024 for line in lines if field in line)


def reset_peak() -> None:
    """Resets ``VmHWM`` to the present resident memory."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def trim() -> None:
    """Gives free memory back to the system, so that no run lives on the one before."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def held_bytes(
    stage: Divisible, is_first: bool, width: int, samples: int
) -> tuple[int, int]:
    """Returns what one microbatch holds in a stage before its I, and before its W.

    From F to B or I that is one array for each Linear: its input, which is the output
    that the ReLU before it keeps as well. In the first stage the very first input is a
    part of the minibatch, which lives anyway; in the last one the output is small. From
    I to W there is the gradient of each Linear's output as well.
    """
    n_linear = (len(stage) + 1) // 2
    inputs = n_linear - is_first
    output = len(stage) % 2 == 0  # of the ReLU at the end, which keeps it
    each = width * samples * 4
    return (inputs + output) * each, (inputs + n_linear - (not output)) * each


def live_arrays(make: Callable[[], Pipeline], data: tuple) -> float:
    """Returns the peak in MiB of arrays that are made in two steps of a new pipeline.

    Args:
        make: Makes the pipeline.
        data: The minibatch.

    """
    tracemalloc.start()
    pipe = make()
    for _ in range(2):
        pipe.step(*data)
    arrays = tracemalloc.get_traced_memory()[1] / MIB
    tracemalloc.stop()
    return arrays


def peaks(comm: MPI.Comm, make: Callable[[], Pipeline], data: tuple) -> list[float]:
    """Returns the peaks in MiB of live arrays and of resident memory.

    Args:
        comm: The ranks.
        make: Makes the pipeline.
        data: The minibatch.

    """
    trim()
    reset_peak()
    before = resident("VmRSS")
    pipe = make()
    for _ in range(2):
        pipe.step(*data)
    pages = resident("VmHWM") - before
    del pipe
    trim()
    # Not in the same steps: tracemalloc needs memory itself.
    arrays = live_arrays(make, data)
    quiet_barrier(comm)
    return [arrays, pages]


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--samples", type=int, default=256, help="in a microbatch")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--schedules", nargs="+", default=["gpipe", "1f1b", "zb_h1"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    abort_on_error()
    result = Result("memory", arguments.output, silent=comm.rank != 0)
    result.write(
        command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{comm.size} ranks, {arguments.layers} layers of width {arguments.width}, "
        f"microbatches of {arguments.samples} samples",
        "each rank, from the first stage to the last: microbatches in flight | MiB "
        "predicted | live arrays | resident",
        "",
    )
    stage = cut(mlp(arguments.width, arguments.layers), comm.size, comm.rank)
    held = comm.allgather(
        held_bytes(stage, comm.rank == 0, arguments.width, arguments.samples)
    )
    activation, pending = zip(*held)
    costs = Costs(1.0, 1.0, 1.0, activation_bytes=activation, pending_bytes=pending)
    # The first step of all makes the parameters.
    data = minibatch(arguments.width, comm.size)
    Pipeline(stage, comm, n_microbatches=1).step(*data)
    gradients = sum(p.array.nbytes for p in stage.params()) / MIB
    totals: dict[str, list[float]] = {}
    for name in arguments.schedules:
        result.write(name)
        for n in arguments.microbatches:
            data = minibatch(arguments.width, n * arguments.samples)
            make = functools.partial(
                Pipeline, stage, comm, n_microbatches=n, schedule=name
            )
            measured = [mib - gradients for mib in peaks(comm, make, data)]
            schedule = make().schedule
            rows = comm.gather(measured)
            if rows:
                columns = [simulate(schedule, costs).peak_memory / MIB, *zip(*rows)]
                in_flight = schedule.validate().in_flight
                totals.setdefault(name, []).append(max(columns[1]))
                result.write(
                    f"{n:5d} microbatches, "
                    + " ".join(f"{h:2g}" for h in in_flight)
                    + " in flight"
                    + "".join(
                        " | " + " ".join(f"{mib:6.1f}" for mib in column)
                        for column in columns
                    )
                )
        result.write()
    if not comm.rank:
        first, last = arguments.microbatches[0], arguments.microbatches[-1]
        for name, values in totals.items():
            result.write(
                f"{name}: {last / first:g} times the microbatches take "
                f"{values[-1] / values[0]:.1f} times the memory of live arrays"
                f" ({values[0]:.1f} to {values[-1]:.1f} MiB on the fullest rank)"
            )
    result.save()


if __name__ == "__main__":
    main()
