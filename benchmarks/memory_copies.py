"""The cost of copies in memory beside the steps of VGG16, on emulated hosts.

    python -m benchmarks.memory_copies

Runs of several minibatches take turns on the same hosts: without copies, with a copy of
every minibatch, and with as many copies as :func:`pipeline.memory_copies` makes by
``every='auto'``. A copy is made between the update of a minibatch and the next one, and
travels to the partner's host while that one is computed. The bytes of all copies on the
first host are those predicted, and those that its folder had after the last run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.overlapped_minibatches import DEADLINE, TIMEOUT, plans_of
from benchmarks.paper_tables.points import Scale, from_json, to_json

#: The kinds of runs: no copies, as many as `'auto'` chooses, and one of each minibatch.
NONE, AUTO, EACH = KINDS = "none", "every='auto'", "every=1"
SCHEDULE = "1f1b"


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    runs = Runs(MPI.COMM_WORLD, job)
    # Makes weights, buffers and the first copies.
    runs.measure(EACH)
    found = alternate(dict(zip(KINDS, KINDS)), job["rounds"], runs.measure)
    return {"seconds": found, **runs.memory(), "every": runs.pace.every}


class Runs:
    """A pipeline that trains with copies and without; all hosts must make it.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of all hosts.
        job: The point, the plan, the number of minibatches, and a folder in memory.

    Attributes:
        pace (Pace): The choice of ``every='auto'``.
    """

    def __init__(self, comm: Any, job: dict[str, Any]) -> None:
        import chainer

        from benchmarks.paper_tables.models import build, minibatch
        from divisible import Plan
        from pipeline import Pipeline
        from pipeline.copies.pace import Pace

        self._comm, self._n = comm, job["minibatches"]
        point = from_json(job["point"])
        plan = Plan.load(job["plan"])
        self._pipe = Pipeline(build(point), comm, plan=plan, timeout=TIMEOUT)
        self._optimizer = self._pipe.setup(chainer.optimizers.MomentumSGD(1e-6))
        self._batch = minibatch(point, point.batch)
        folder = Path(job["memory"], str(comm.rank))
        folder.mkdir()
        self._pipe.copies.open("memory_copies", folder)
        self.pace = Pace()

    def measure(self, kind: str) -> float:
        """Returns the seconds of a minibatch of a run."""
        from benchmarks.common.hosts import PAUSE
        from benchmarks.common.perceptron import step_seconds

        return step_seconds(self._comm, lambda: self._train(kind), PAUSE) / self._n

    def _train(self, kind: str) -> None:
        for _ in range(self._n):
            begin = time.perf_counter()
            self._pipe.step(*self._batch)["loss"]
            self._optimizer.update()
            step = time.perf_counter() - begin
            if kind == EACH or (kind == AUTO and self.pace.is_due()):
                begin = time.perf_counter()
                self._pipe.copies.save(self._optimizer)
                if kind == AUTO:
                    took = time.perf_counter() - begin, step
                    self.pace.note(self._comm.allgather(took))

    def memory(self) -> dict[str, int]:
        """Returns the predicted bytes of the copies here, and those of their files."""
        copies = self._pipe.copies
        files = [each for each in copies.folder.rglob("*") if each.is_file()]
        found = {
            "predicted": copies.n_bytes,
            "held": sum(each.stat().st_size for each in files),
        }
        self._pipe.close()
        return found


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--image", type=int, default=32, help="pixels on a side")
    add("--batch", type=int, help="samples of a minibatch, as the paper's unless given")
    add("--microbatches", type=int, default=8)
    add("--minibatches", type=int, default=10, help="of a run")
    add("--rounds", type=int, default=5)
    add("--output", type=Path)
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()
    scale = Scale(image=arguments.image, batch=arguments.batch)
    point = scale.of("vgg16", arguments.hosts, arguments.microbatches)
    result = Result("memory_copies", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"VGG16, {point.batch} images of {point.size} pixels in {point.microbatches}"
        f" microbatches, {SCHEDULE}, best_plan's cuts; {arguments.hosts} hosts with"
        f" equal shares of {arguments.cpu:g} cores, links of {point.rate};"
        f" {arguments.rounds} runs of each kind in turn, of {arguments.minibatches}"
        f" minibatches; ratios: median (min..max)",
        "",
    )
    (plan,) = plans_of(point, [SCHEDULE], arguments.cpu).values()
    with tempfile.TemporaryDirectory() as folder, _in_memory() as memory:
        file = str(Path(folder, "plan.json"))
        plan.save(file)
        job = {
            "point": to_json(point),
            "plan": file,
            "memory": memory,
            "minibatches": arguments.minibatches,
            "rounds": arguments.rounds,
        }
        found = run(point.on(arguments.cpu), __spec__.name, job, DEADLINE)
    write(result, found)
    result.save()


def _in_memory() -> tempfile.TemporaryDirectory:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=folder)


def write(result: Result, found: dict[str, Any]) -> None:
    """Writes the seconds of each kind of run, and the memory of copies."""
    seconds = found["seconds"]
    for kind in KINDS:
        middle = statistics.median(seconds[kind])
        ratio = ratios(seconds[kind], seconds[NONE])
        result.write(f"{kind:<13} {middle:.3f} s a minibatch, {ratio} times none")
    result.write(
        "",
        f"'auto' copies each {found['every']}th minibatch at the end",
        f"copies on the first host: {found['predicted'] / 1e6:.2f} MB predicted,"
        f" {found['held'] / 1e6:.2f} MB held",
    )


if __name__ == "__main__":
    main()
