"""The gain of polling for messages between layers, on emulated hosts.

    python -m benchmarks.progress

Over TCP an MPI library moves a large message only while the program is in one of its
calls. The class `pipeline.step.progress.Progress` makes such calls between the layers.
Here steps of the same pipeline with and without them take turns. Few microbatches make
large messages.

Each host is a network namespace with a CPU quota and a link of 1 Gbit/s.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.common.hosts import (
    PAUSE,
    Hosts,
    add_hosts_arguments,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios

LINK = "1gbit"


def work(job: dict) -> dict:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from benchmarks.common.perceptron import cut, minibatch, mlp, step_seconds
    from pipeline import Pipeline

    comm = MPI.COMM_WORLD
    x, t = minibatch(job["width"], job["batch"])
    stage = cut(mlp(job["width"], job["layers"]), comm.size, comm.rank)
    answer = {}
    for m in job["microbatches"]:
        pipe = Pipeline(stage, comm, n_microbatches=m, timeout=600)
        ways = {"between layers": pipe.internals.step.runner._looks, "never": []}

        def seconds_of(way: list, pipe: Pipeline = pipe) -> float:
            pipe.internals.step.runner._looks = way
            return step_seconds(comm, lambda: pipe.step(x, t), PAUSE)

        # Agrees on shapes and touches the memory.
        seconds_of(ways["never"])
        answer[m] = alternate(ways, job["rounds"], seconds_of)
        pipe.close()
    return answer


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2])
    parser.add_argument("--microbatches", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900, help="seconds a row")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("progress", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"1F1B, {arguments.layers} layers of width {arguments.width}, batch"
        f" {arguments.batch}; hosts with equal shares of {arguments.cpu:g} cores, links"
        f" of {LINK}; {arguments.rounds} rounds; median (min..max)",
        "",
        f"{'hosts':>5} {'microbatches':>12} {'MiB a message':>13} {'looks':>9}"
        f" {'none':>9}  none/looks",
    )
    names = ("width", "layers", "batch", "microbatches", "rounds")
    job = {name: getattr(arguments, name) for name in names}
    for n in arguments.hosts:
        hosts = Hosts(n, arguments.cpu / n, LINK)
        answer = run(hosts, __spec__.name, job, arguments.timeout)
        for m, seconds in answer.items():
            looks, none = seconds["between layers"], seconds["never"]
            mebi = 4 * arguments.width * arguments.batch / int(m) / 2**20
            result.write(
                f"{n:>5} {m:>12} {mebi:>13.1f} {statistics.median(looks):>7.2f} s"
                f" {statistics.median(none):>7.2f} s  {ratios(none, looks)}"
            )
    result.save()


if __name__ == "__main__":
    main()
