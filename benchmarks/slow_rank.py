"""How soon ``divisible watch`` names a rank that becomes slow, and how often falsely.

    OMP_NUM_THREADS=1 mpiexec -n 4 python -m benchmarks.slow_rank

Each rank has a layer that sleeps in its forward instead of computing, so that the ranks
need no core of their own. After many calm minibatches, the layer of one rank takes
``--slowed`` times as long. :class:`~pipeline.RunStatus` writes the states of the ranks,
and rank 0 finds the slow ones, as for ``divisible watch``. Counted are calm minibatches
at which a rank was called slow, and slow ones until the right rank is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import chainer
import chainer.links as L
import numpy as np
from mpi4py import MPI

from benchmarks.common.results import Result, command, machine
from divisible import Divisible
from pipeline import Pipeline, RunStatus
from pipeline.watching.status_files import read_statuses

N_MICROBATCHES = 2
#: The rank that becomes slow.
SLOW = 2
#: Slow minibatches after which the benchmark gives up.
MOST = 200


class Sleeping(chainer.Link):
    """A layer whose forward takes a while.

    Args:
        seconds: Seconds of a forward.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Returns the input after a while."""
        time.sleep(self.seconds)
        return x


def main() -> None:
    """Runs the minibatches and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calm", type=int, default=1000, help="minibatches")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a forward")
    parser.add_argument("--slowed", type=float, default=1.3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size <= SLOW:
        parser.error(f"start at least {SLOW + 1} ranks")
    result = Result("slow_rank", arguments.output, silent=comm.rank > 0)
    result.write(
        command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"forwards of {1e3 * arguments.seconds:g} ms, {N_MICROBATCHES} microbatches",
        "",
    )
    layers = [
        each
        for _ in range(comm.size)
        for each in (L.Linear(4, 4), Sleeping(arguments.seconds))
    ]
    pipe = Pipeline(Divisible(*layers), comm, n_microbatches=N_MICROBATCHES)
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    (stage,) = pipe.stages.values()
    x, t = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
    own = tempfile.TemporaryDirectory()
    out = comm.bcast(own.name)

    with RunStatus(pipe, out, line=False) as status:

        def slow() -> list[str]:
            """Runs a minibatch, and returns what is said of slow ranks behind it."""
            means = pipe.step(x, t)
            optimizer.update()
            status.note(means, epoch=pipe.n_steps / 100)
            found = None
            if comm.rank == 0:
                found = read_statuses(Path(out, "ranks")).ranks[0].slow
            return comm.bcast(found)

        n_false = sum(bool(slow()) for _ in range(arguments.calm))
        result.write(f"{n_false} false alarms in {arguments.calm} minibatches")
        if comm.rank == SLOW:
            stage[-1].seconds *= arguments.slowed
        n, right = 0, []
        while not right and n < MOST:
            n += 1
            right = [words for words in slow() if words.startswith(f"rank {SLOW} ")]
        found = f"named after {n} minibatches: {right[0]}" if right else "not named"
        result.write(f"rank {SLOW}, {arguments.slowed:g} times as slow: {found}")
    # Waits for all ranks, which then write no more into the folder.
    pipe.close()
    own.cleanup()
    result.save()


if __name__ == "__main__":
    main()
