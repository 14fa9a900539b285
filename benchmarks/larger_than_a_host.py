"""Trains a model whose training state is three times the memory of a host.

    python benchmarks/larger_than_a_host.py --cluster PATH_OF_emulated_cluster

The model's parameters, gradients and momentum need three times the memory limit of an
emulated host, which the kernel enforces. On 4 such hosts it trains: each rank builds
the whole model in `deferred_init`, and makes the layers of its own stage.

Three rows: 4 hosts that train; one host that trains the undivided model, and is killed
for it; and the planner, which refuses the one and accepts the other beforehand, with
the numbers. Measured are the resident memory of every process (VmHWM), the most that
the kernel has counted of each host, and the loss, which must fall.

Needs root, cgroup v1 and iproute2, and says so where they are missing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _common import Result, machine
from _hosts import (
    Hosts,
    HostsFailedError,
    add_cluster_argument,
    command_line,
    prepare,
    read_job,
    run,
)

MIB = 2**20
#: Arrays for each parameter: itself, its gradient, its momentum.
STATES = 3
#: How many times a host's memory the state of the whole model takes.
EXCESS = 3
#: Minutes that a run may take.
DEADLINE = 10


def n_linear(width: int, memory: int) -> int:
    """Returns how many layers make a state of three times the memory."""
    layer = STATES * 4 * width * (width + 1)
    return -(-EXCESS * memory // layer)


def work(job: dict[str, Any], report: Path) -> None:
    """What each host does: trains its stage and tells how much memory that took."""
    # Here, because the process that only starts the hosts should not start MPI.
    import chainer
    import numpy as np
    from _mlp import minibatch
    from memory import resident
    from mpi4py import MPI

    from divisible import deferred_init
    from pipeline import Pipeline, abort_on_error

    abort_on_error()
    comm = MPI.COMM_WORLD
    ready = resident("VmRSS")
    with deferred_init(seed=0):
        model = perceptron(job["width"], job["layers"])
    state = STATES * 4 * model.count_params()
    built = resident("VmRSS")
    x, t = minibatch(job["width"], job["batch"])
    plan, refusal = None, ""
    if comm.size > 1:
        words = None
        if comm.rank == 0:
            samples = job["batch"] // job["microbatches"]
            # The process itself needs memory as well.
            free = job["memory"] - built * MIB
            words = make_plan(model, x[:samples], t[:samples], comm.size, free)
        plan, refusal = comm.bcast(words)
    stage = model.divide(*plan.range(comm.rank)) if plan else model.divide()
    del model
    optimizer = chainer.optimizers.MomentumSGD(job["rate"]).setup(stage)
    pipe = Pipeline(stage, comm, job["microbatches"])
    losses = []
    for _ in range(job["steps"]):
        losses.append(pipe.step(x, t)["loss"])
        optimizer.update()
    if not np.isfinite(losses).all():
        raise RuntimeError(f"the losses are {losses}")
    counted = Path("/sys/fs/cgroup/memory", f"emu{comm.rank}/memory.max_usage_in_bytes")
    mine = {
        "layers": stage.layer_range,
        "ready": ready,
        "built": built,
        "peak": resident("VmHWM"),
        "host": int(counted.read_text()) / MIB,
        "state": STATES * 4 * stage.count_params() / MIB,
    }
    ranks = comm.gather(mine)
    if comm.rank == 0:
        answer = {"losses": losses, "ranks": ranks, "state": state, "refusal": refusal}
        report.write_text(json.dumps(answer))


def perceptron(width: int, n: int) -> Any:
    """Makes ``n`` fully connected layers with their sizes, and ReLU between them."""
    import chainer.functions as F
    import chainer.links as L
    from chainer.initializers import HeNormal

    from divisible import Divisible

    layers: list[Any] = []
    for _ in range(n):
        layers += [L.Linear(width, width, initialW=HeNormal()), F.relu]
    return Divisible(*layers, L.Linear(width, 10))


def make_plan(model: Any, x: Any, t: Any, n_stages: int, memory: float) -> tuple:
    """Returns a plan that fits into the memory, and why one stage does not."""
    import chainer

    from divisible import MemoryLimitError, partition, profile

    costs = profile(model, x, t, optimizer=chainer.optimizers.MomentumSGD(), repeat=1)
    plan = partition(costs, n_stages, memory=memory)
    try:
        partition(costs, 1, memory=memory)
    except MemoryLimitError as error:
        return plan, str(error)
    raise RuntimeError("the planner took one host to be enough")


def main() -> None:
    """Runs on 4 hosts and on one, and writes the result."""
    task = read_job()
    if task:
        work(*task)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cluster_argument(parser)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--memory", type=int, default=1024, help="MiB of a host")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--cpu", type=float, default=1.6, help="of all hosts, in cores")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    job = {
        "width": arguments.width,
        "layers": n_linear(arguments.width, arguments.memory * MIB),
        "memory": arguments.memory * MIB,
        "batch": arguments.batch,
        "microbatches": arguments.microbatches,
        "steps": arguments.steps,
        "rate": arguments.rate,
    }
    result = Result("larger_than_a_host", arguments.output)
    result.write(
        command_line(arguments.cluster),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{job['layers']} layers of width {arguments.width} and one of 10 outputs, "
        f"batch {arguments.batch} in {arguments.microbatches} microbatches, momentum SGD",
        f"{arguments.hosts} hosts of {arguments.memory} MiB",
        "",
    )

    def on(n: int) -> dict[str, Any]:
        share = min(1.0, arguments.cpu / n)
        hosts = Hosts(n, share, memory=f"{arguments.memory}M")
        return run(arguments.cluster, hosts, Path(__file__), job, 60 * DEADLINE)

    answer = on(arguments.hosts)
    state = answer["state"] / MIB
    result.write(
        f"parameters, gradients and momentum take {state:.0f} MiB, "
        f"{state / arguments.memory:.2f} times a host's memory",
        "",
        "rank  layers      state  process before and after  resident,   counted,  limit",
        "                    MiB    building the model MiB   peak MiB   peak MiB    MiB",
    )
    for rank, row in enumerate(answer["ranks"]):
        start, end = row["layers"]
        result.write(
            f"{rank:4d}  {start:3d}..{end - 1:<3d} {row['state']:9.0f} "
            f"{row['ready']:14.0f} {row['built']:10.0f} {row['peak']:10.0f} "
            f"{row['host']:10.0f} {arguments.memory:6d}"
        )
    losses = answer["losses"]
    falls = losses[-1] < losses[0]
    result.write(
        "",
        "losses: " + " ".join(f"{loss:.4f}" for loss in losses),
        f"trains on {arguments.hosts} hosts: " + ("met" if falls else "MISSED"),
        "",
        "the planner on one host: " + answer["refusal"],
    )
    try:
        on(1)
        word = "trains as well: the limit was not kept, MISSED"
    except HostsFailedError as error:
        word = f"{error}: it is killed"
    result.write(f"the undivided model on one host: {word}")
    result.save()


if __name__ == "__main__":
    main()
