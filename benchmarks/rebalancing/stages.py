"""A host loses half of its CPU in the middle of training, and layers leave it.

Three runs of the same training take turns on the same hosts, for each change: with the
cut kept, with `Rebalance`, and begun with the best cut for the hosts as they become. In
each a host's share is halved after some minibatches, and given back after others.
The throughput that counts is that from the third check after the change on. Losses and
parameters of all runs must be equal bit for bit. The table also has the seconds that
moves took, and the CPU time of watching.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import Hosts, run
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.rebalancing.changes import (
    DEADLINE,
    SLOW_HOST,
    Course,
    n_iterations,
    watcher,
)

WAYS = ("kept", "rebalanced", "best cut")
#: Throughput over that of the best cut, and CPU time of watching over that of a step.
WANTED, WATCHING = 0.9, 0.01


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Trains in each way for each change; called on every rank."""
    found: dict[str, Any] = {way: [] for way in WAYS}
    n = 0
    for change in range(job["changes"]):
        for way in WAYS[change % 3 :] + WAYS[: change % 3]:
            found[way].append(_train(job, way, n))
            n += 1
    return found


def _train(job: dict[str, Any], way: str, number: int) -> dict[str, Any]:
    """Trains once, on all ranks; says when the host is to become slow."""
    # Here, because the process that starts the hosts must not start MPI.
    import chainer
    import chainer.links as L
    import numpy as np
    from chainer.training import Trainer
    from mpi4py import MPI

    from divisible import Divisible, Plan, partition
    from divisible.planning.layer_cost import LayerCost
    from divisible.planning.profile import Profile
    from pipeline import Pipeline, PipelineUpdater, Rebalance

    width, n_layers, every = job["width"], job["layers"], job["every"]
    _, _, end = n_iterations(every)
    comm, folder = MPI.COMM_WORLD, Path(job["folder"])

    def build() -> Divisible:
        return Divisible(*[L.Linear(width, width) for _ in range(n_layers)])

    class Watched(Rebalance):
        """Adds up the CPU time of its calls that move nothing."""

        cpu_seconds = 0.0

        def __call__(self, trainer: Any) -> None:
            start, n_moves = time.process_time(), len(self.moves)
            super().__call__(trainer)
            if len(self.moves) == n_moves:
                self.cpu_seconds += time.process_time() - start

    cuts = Plan.uniform(n_layers, comm.size).cuts
    if way == "best cut":
        speeds = [0.5 if rank == SLOW_HOST else 1.0 for rank in range(comm.size)]
        profile = Profile([LayerCost(1, 1, 1)] * n_layers, n_samples=1)
        cuts = partition(profile, comm.size, speeds=speeds).cuts
    np.random.seed(0)
    stage = build().divide(*cuts[comm.rank : comm.rank + 2])
    optimizer = chainer.optimizers.Adam(1e-4).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=job["microbatches"])
    iterator = None
    if pipe.is_first:
        random = np.random.RandomState(0)
        x = random.randn(4 * job["batch"], width).astype(np.float32)
        t = random.randint(0, width, len(x)).astype(np.int32)
        data = chainer.datasets.TupleDataset(x, t)
        iterator = chainer.iterators.SerialIterator(data, job["batch"], shuffle=False)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    out = folder / f"run{number}"
    trainer = Trainer(updater, (end, "iteration"), out=str(out))
    course = Course(folder, number, every, is_chief=comm.rank == 0)
    trainer.extend(course)
    watch = Watched(build, every=every)
    if way == "rebalanced":
        trainer.extend(watch)
    start = time.process_time()
    trainer.run()
    cpu = time.process_time() - start
    digest = hashlib.sha256()
    said = {p: param.array.tobytes() for p, param in stage.namedparams()}
    for _, array in sorted(
        item
        for theirs in pipe.internals.gather(said, "save")
        for item in theirs.items()
    ):
        digest.update(array)
    shares = pipe.internals.gather(watch.cpu_seconds / cpu, "save")
    final = list(pipe.cuts)
    pipe.close()
    return {
        "seconds": course.seconds_settled,
        "losses": [loss.hex() for loss in course.losses],
        "digest": digest.hexdigest(),
        "moves": [moved.seconds for moved in watch.moves],
        "bytes": [moved.bytes for moved in watch.moves],
        "watching": max(shares),
        "cuts": final,
    }


def are_equal(found: dict[str, list[dict[str, Any]]]) -> bool:
    """Returns whether all runs have the same losses and parameters, bit for bit."""
    runs = [each for runs in found.values() for each in runs]
    return all(
        (each["losses"], each["digest"]) == (runs[0]["losses"], runs[0]["digest"])
        for each in runs
    )


def measure(arguments: argparse.Namespace) -> None:
    """Measures and writes the result."""
    share = arguments.cpu / arguments.hosts
    hosts = Hosts(arguments.hosts, share)
    result = Result("rebalancing", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{arguments.layers} layers of {arguments.width} units, batch"
        f" {arguments.batch} in {arguments.microbatches} microbatches; {hosts.n} hosts"
        f" with {share:g} of a core and links of {hosts.rate} each; host {SLOW_HOST}"
        f" loses half of it and gets it back; a check every {arguments.every}"
        f" minibatches; {arguments.changes} changes; median (min..max)",
        "",
    )
    names = ("layers", "width", "batch", "microbatches", "every", "changes")
    with tempfile.TemporaryDirectory() as folder:
        job = {name: getattr(arguments, name) for name in names}
        found = run(
            hosts,
            __name__,
            {**job, "folder": folder},
            DEADLINE,
            watcher(Path(folder), share),
        )
    seconds = {way: [each["seconds"] for each in runs] for way, runs in found.items()}
    result.write(f"{'':12} {'step s':>8}  throughput over that of the best cut")
    for way in WAYS:
        each = ratios(seconds["best cut"], seconds[way])
        result.write(f"{way:12} {statistics.median(seconds[way]):8.3f}  {each}")
    moved = found["rebalanced"]
    moves = [value for each in moved for value in each["moves"]]
    sent = [value for each in moved for value in each["bytes"]]
    watching = statistics.median(each["watching"] for each in moved)
    gained = statistics.median(
        a / b for a, b in zip(seconds["best cut"], seconds["rebalanced"])
    )
    back = sum(each["cuts"] == found["kept"][0]["cuts"] for each in moved)
    result.write(
        "",
        f"{len(moves)} moves, {max(moves, default=0):.3f} s at most, up to"
        f" {max(sent, default=0) / 2**20:.1f} MiB; the cuts at the end are those of"
        f" the beginning in {back} of {len(moved)} runs",
        f"watching takes {watching:.2%} of the CPU time, wanted {WATCHING:.0%}:"
        f" {'met' if watching < WATCHING else 'MISSED'}",
        f"losses and parameters of all runs are equal bit for bit:"
        f" {'met' if are_equal(found) else 'MISSED'}",
        f"{gained:.2f} of the best cut's throughput, wanted {WANTED}:"
        f" {'met' if gained >= WANTED else 'MISSED'}",
    )
    result.save()
