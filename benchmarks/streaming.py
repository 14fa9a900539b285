"""Trains a model of six times a host's memory on that host, with its weights on disk.

    python -m benchmarks.streaming

Weights, gradients and momentum need six times the memory limit of an emulated host,
which the kernel enforces; pages of mapped files count against it. One host with the
limit trains, and one without, with the same segments; their losses must be equal bit
for bit. The output has the resident memory of the process (VmHWM), and the most bytes
that the kernel has counted on the host, including the cache of files.

Then this process measures more with one thread. A model that fits into memory makes
steps with its weights in memory and on disk. The bytes per second of the disk are
measured. A pointwise function within the segments is compared with one after them.

Where hosts cannot be emulated the benchmark reports that; see benchmarks/cluster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import Hosts, add_hosts_arguments, prepare, run
from benchmarks.common.results import Result, command, machine

MIB = 2**20
#: Arrays for each parameter: itself, its gradient, its momentum.
STATES = 3
#: How many times a host's memory the state of the model takes.
EXCESS = 6
#: Seconds that a run may take.
DEADLINE = 900
MINIBATCHES = (250, 1000, 4000)


def n_linear(width: int, memory: int) -> int:
    """Returns how many layers make a state of six times the memory."""
    return -(-EXCESS * memory // (STATES * 4 * width * (width + 1)))


def perceptron(width: int, n: int, segment: int | None) -> Any:
    """Makes fully connected layers with ReLU, streamed if there is a segment."""
    import chainer.functions as F
    import chainer.links as L
    from chainer.initializers import HeNormal

    from divisible import Divisible, deferred_init
    from divisible.streaming import Streamed

    with deferred_init(seed=0):
        layers: list[Any] = []
        for _ in range(n):
            link = L.Linear(width, width, initialW=HeNormal())
            if segment is None:
                layers += [link, F.relu]
            else:
                # At the place of the ReLU, so that all weights are the same.
                streamed = Streamed(link, activation=F.relu, segment=segment)
                layers += [streamed, F.identity]
        model = Divisible(*layers, L.Linear(width, 10))
    return model.divide()


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Trains for some steps; runs on a host, or here."""
    import chainer
    import numpy as np
    from mpi4py import MPI

    from benchmarks.memory import resident
    from pipeline import Pipeline

    stage = perceptron(job["width"], job["layers"], job["segment"])
    optimizer = chainer.optimizers.MomentumSGD(job["rate"]).setup(stage)
    random = np.random.RandomState(0)
    x = random.standard_normal((job["batch"], job["width"])).astype("f")
    t = random.randint(0, 10, job["batch"]).astype("i")
    losses, seconds = [], []
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1, accfun=None)
    for _ in range(job["steps"]):
        begun = time.perf_counter()
        losses.append(pipe.step(x, t, optimizer)["loss"])
        optimizer.update()
        seconds.append(time.perf_counter() - begun)
    # The first step makes the file of the momentum.
    later = statistics.median(seconds[1:])
    return {"losses": losses, "seconds": later, "peak": resident("VmHWM")}


def pointwise(is_fused: bool, n_outputs: int, batch: int, rows: int) -> float:
    """Returns the seconds of forward and backward of a narrow layer and a ReLU."""
    import chainer.functions as F
    import chainer.links as L
    import numpy as np

    from divisible import Divisible, deferred_init
    from divisible.streaming import Streamed

    with deferred_init(seed=0):
        link = L.Linear(8, n_outputs)
        if is_fused:
            model = Divisible(Streamed(link, activation=F.relu, segment=rows))
        else:
            model = Divisible(Streamed(link, segment=rows), F.relu)
    stage, x = model.divide(), np.ones((batch, 8), np.float32)
    gy, seconds = np.ones((batch, n_outputs), np.float32), []
    for _ in range(6):
        begun = time.perf_counter()
        y = stage(x)
        y.grad = gy
        stage.cleargrads()
        y.backward()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def on_hosts(arguments: Any, result: Result) -> None:
    """Trains on a host with the limit, and on one without."""
    job = {
        "width": arguments.width,
        "layers": n_linear(arguments.width, arguments.memory * MIB),
        "segment": arguments.segment,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "rate": arguments.rate,
    }
    state = STATES * 4 * job["layers"] * job["width"] * (job["width"] + 1) / MIB
    result.write(
        f"{job['layers']} layers of width {job['width']}: weights, gradients and"
        f" momentum of {state:.0f} MiB, {state / arguments.memory:.2f} times the"
        f" {arguments.memory} MiB of a host; segments of {job['segment']} rows",
    )
    losses = []
    for limit in (f"{arguments.memory}M", None):
        found = run(Hosts(1, arguments.cpu, memory=limit), __spec__.name, job, DEADLINE)
        counted = found.get("counted")
        words = "" if counted is None else f", {counted[0] / MIB:.0f} MiB on the host"
        result.write(
            f"limit {limit or 'none'}: {found['peak']:.0f} MiB resident{words};"
            f" {found['seconds']:.2f} s a step"
        )
        losses.append(found["losses"])
    word = "met" if losses[0] == losses[1] else "MISSED"
    result.write(
        "losses: " + " ".join(f"{loss:.6f}" for loss in losses[0]),
        f"equal with and without the limit, bit for bit: {word}",
    )


def here(arguments: Any, result: Result) -> None:
    """Times steps in this process."""
    from divisible.streaming import measure_disk

    disk = measure_disk(n_bytes=arguments.disk * MIB)
    result.write(
        "",
        f"the disk: {disk.read / 1e6:.0f} MB/s read,"
        f" {disk.write / 1e6:.0f} MB/s written",
        "minibatch  resident s  streamed s  ratio",
    )
    for batch in MINIBATCHES:
        job = {"width": arguments.width, "layers": 2, "steps": 4}
        job.update(batch=batch, rate=arguments.rate)
        resident = work({**job, "segment": None})["seconds"]
        streamed = work({**job, "segment": arguments.segment})["seconds"]
        ratio = streamed / resident
        word = "" if batch < 1000 else " met" if ratio <= 1.15 else " MISSED (1.15)"
        result.write(f"{batch:9d} {resident:11.3f} {streamed:11.3f} {ratio:6.2f}{word}")
    # More than the caches of large processors hold.
    fused, after = (pointwise(each, 16384, 4000, 1024) for each in (True, False))
    word = "met" if after / fused >= 1.2 else "MISSED (1.2)"
    result.write(
        "",
        f"ReLU of 16384 outputs of 8 inputs, 4000 samples: {fused:.3f} s in segments of"
        f" 1024, {after:.3f} s after them, {after / fused:.2f} times: {word}",
    )


def main() -> None:
    """Runs all and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--memory", type=int, default=300, help="MiB of a host")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--segment", type=int, default=512, help="rows")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--disk", type=int, default=512, help="MiB to time it with")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()
    result = Result("streaming", arguments.output)
    result.write(command(), machine("numpy", "chainer"), "")
    on_hosts(arguments, result)
    here(arguments, result)
    result.save()


if __name__ == "__main__":
    main()
