"""The cost of the state that ranks write for "divisible watch", beside their steps.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.watching

The paper's 32 fully connected layers are trained with :class:`~pipeline.RunStatus` and
without it, which take turns. A difference of some thousandths is lost among the other
differences of a step, so the calls themselves are timed as well. They write this rank's
file, and rank 0 also reads the others' and makes the line, as if it were shown.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from benchmarks.common.perceptron import step_seconds
from benchmarks.common.perceptron_run import PerceptronRun
from benchmarks.common.results import alternate, ratios
from pipeline import RunStatus


class Timed(RunStatus):
    """A state of a run that adds up the seconds of its calls."""

    seconds, computing, n_calls = 0.0, 0.0, 0

    def note(self, *args: Any, **values: Any) -> None:
        """Notes a minibatch, and how long that took."""
        start, before = time.perf_counter(), time.thread_time()
        super().note(*args, **values)
        self.seconds += time.perf_counter() - start
        self.computing += time.thread_time() - before
        self.n_calls += 1


def main() -> None:
    """Runs the comparison that the arguments ask for."""
    run = PerceptronRun.of_arguments("watching", __doc__)
    args, comm, result, pipe, optimizer, x, t = run
    out = comm.bcast(tempfile.mkdtemp())
    status = Timed(pipe, out, n_steps=10**6, line=False)

    def steps() -> None:
        for _ in range(args.steps):
            pipe.step(x, t)
            with pipe.recorded_update():
                optimizer.update()

    def watched_steps() -> None:
        for _ in range(args.steps):
            found = pipe.step(x, t)
            with pipe.recorded_update():
                optimizer.update()
            status.note(found, epoch=1.0)

    variants = {"step and update": steps, "watched": watched_steps}
    for variant in variants.values():
        variant()
    status.seconds, status.computing, status.n_calls = 0.0, 0.0, 0
    seconds = alternate(
        variants, args.rounds, lambda variant: step_seconds(comm, variant, 0.0005)
    )
    said = comm.gather((status.seconds, status.computing, status.n_calls))
    result.write(f"{'':24} {'ms':>9}   ratio to the steps alone")
    for name, values in seconds.items():
        each = 1e3 * sorted(values)[len(values) // 2] / args.steps
        base = seconds["step and update"]
        result.write(f"{name:24} {each:9.2f}   {ratios(values, base)}")
    for rank, (spent, computing, n_calls) in enumerate(said or ()):
        share = spent / sum(seconds["watched"])
        result.write(
            f"rank {rank}: RunStatus.note takes {1e3 * spent / n_calls:.3f} ms a"
            f" minibatch, {share:.2%} of the time;"
            f" {1e3 * computing / n_calls:.3f} ms of it on a processor"
        )
    status.close()
    result.save()


if __name__ == "__main__":
    main()
