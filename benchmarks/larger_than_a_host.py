"""Trains a model whose training state is three times the memory of a host.

    python -m benchmarks.larger_than_a_host

The model's parameters, gradients and momentum need three times the memory limit of an
emulated host, which the kernel enforces. On 4 such hosts it trains: each rank builds
the whole model in `deferred_init`, and makes the layers of its own stage.

The layers are profiled one by one on one such host, and the planner says where to cut,
and refuses one host for all, with the numbers. Then 4 hosts train, and one host tries
to train the undivided model, and is killed. Measured are the resident memory of every
process (VmHWM), the most that the kernel has counted on each host, and the loss, which
must fall.

Where hosts cannot be emulated the benchmark reports that; see benchmarks/cluster.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    Hosts,
    HostsFailedError,
    add_hosts_arguments,
    prepare,
    run,
)
from benchmarks.common.results import Result, command, machine

MIB = 2**20
#: Arrays for each parameter: itself, its gradient, its momentum.
STATES = 3
#: How many times a host's memory the state of the whole model takes.
EXCESS = 3
#: Seconds that a run may take.
DEADLINE = 600


def n_linear(width: int, memory: int) -> int:
    """Returns how many layers make a state of three times the memory."""
    layer = STATES * 4 * width * (width + 1)
    return -(-EXCESS * memory // layer)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from benchmarks.common.perceptron import minibatch
    from benchmarks.memory import resident
    from divisible import deferred_init

    comm = MPI.COMM_WORLD
    x, t = minibatch(job["width"], job["batch"])
    before = resident("VmRSS")
    with deferred_init(seed=0):
        model = perceptron(job["width"], job["layers"])
    built = resident("VmRSS")
    answer = {"state": STATES * 4 * model.count_params() / MIB}
    if job["task"] == "plan":
        samples = job["batch"] // job["microbatches"]
        # The process itself needs memory as well.
        free = job["memory"] - built * MIB
        answer.update(make_plan(model, x[:samples], t[:samples], job["ranks"], free))
    else:
        stage = model.divide(*job["cuts"][comm.rank : comm.rank + 2])
        del model
        losses = train(stage, comm, x, t, job)
        row = {
            "layers": stage.layer_range,
            "state": STATES * 4 * stage.count_params() / MIB,
            "before": before,
            "built": built,
            "peak": resident("VmHWM"),
        }
        answer.update(losses=losses, ranks=comm.gather(row))
    return answer


def train(stage: Any, comm: Any, x: Any, t: Any, job: dict[str, Any]) -> list[float]:
    """Makes some steps on the same minibatch and returns the losses."""
    import chainer

    from pipeline import Pipeline

    optimizer = chainer.optimizers.MomentumSGD(job["rate"]).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=job["microbatches"])
    losses = []
    for _ in range(job["steps"]):
        losses.append(pipe.step(x, t)["loss"])
        optimizer.update()
    return losses


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


def make_plan(model: Any, x: Any, t: Any, n_stages: int, memory: float) -> dict:
    """Returns cuts that fit into the memory, and why the whole does not.

    Layer by layer, so that a host that cannot hold the model can measure it.
    """
    import chainer

    from divisible import MemoryLimitError, partition, profile

    optimizer = chainer.optimizers.MomentumSGD()
    costs = profile(model, x, t, optimizer=optimizer, repeat=1)
    plan = partition(costs, n_stages, memory=memory)
    try:
        partition(costs, 1, memory=memory)
    except MemoryLimitError as error:
        return {"cuts": plan.cuts, "refusal": str(error)}
    return {"cuts": plan.cuts, "refusal": "accepted, MISSED"}


def main() -> None:
    """Runs on 4 hosts and on one, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--memory", type=int, default=1024, help="MiB of a host")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    job = {
        "width": arguments.width,
        "layers": n_linear(arguments.width, arguments.memory * MIB),
        "memory": arguments.memory * MIB,
        "ranks": arguments.hosts,
        "batch": arguments.batch,
        "microbatches": arguments.microbatches,
        "steps": arguments.steps,
        "rate": arguments.rate,
    }

    def on(n: int, **task: Any) -> dict[str, Any]:
        share = min(1.0, arguments.cpu / n)
        hosts = Hosts(n, share, memory=f"{arguments.memory}M")
        words = {**job, **task}
        return run(hosts, __spec__.name, words, DEADLINE)

    result = Result("larger_than_a_host", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{job['layers']} layers of width {arguments.width} and one of 10 outputs",
        f"batch {arguments.batch}, {arguments.microbatches} microbatches, momentum SGD",
    )
    planned = on(1, task="plan")
    state, cuts = planned["state"], planned["cuts"]
    result.write(
        f"parameters, gradients and momentum: {state:.0f} MiB,"
        f" {state / arguments.memory:.2f} times the {arguments.memory} MiB of a host",
        "",
        f"planned on one such host, layer by layer: cuts {cuts}",
        f"the planner, asked for one host: {planned['refusal']}",
        "",
        "rank  layers     state  process before,  after  resident  on the  limit",
        "                   MiB  the model is built MiB  peak MiB    host    MiB",
    )
    answer = on(arguments.hosts, task="train", cuts=cuts)
    for rank, row in enumerate(answer["ranks"]):
        start, end = row["layers"]
        result.write(
            f"{rank:4d}  {start:3d}..{end - 1:<3d} {row['state']:7.0f}"
            f" {row['before']:15.0f} {row['built']:6.0f} {row['peak']:9.0f}"
            f" {answer['counted'][rank] / MIB:7.0f} {arguments.memory:6d}"
        )
    losses = answer["losses"]
    word = "met" if losses[-1] < losses[0] else "MISSED"
    result.write(
        "",
        "losses: " + " ".join(f"{loss:.4f}" for loss in losses),
        f"trains on {arguments.hosts} hosts: {word}",
    )
    try:
        on(1, task="train", cuts=[None, None])
        word = "trains: the limit was not kept, MISSED"
    except HostsFailedError as error:
        word = f"killed ({error})" if error.killed else f"failed, MISSED ({error})"
    result.write(f"the undivided model on one host: {word}")
    result.save()


if __name__ == "__main__":
    main()
