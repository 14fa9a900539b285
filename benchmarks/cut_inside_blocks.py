"""Models cut anywhere against the same ones cut at block borders, on emulated hosts.

    python -m benchmarks.cut_inside_blocks

Where a skip connection cannot leave a stage, a block is one layer, and the stages are
only as equal as whole blocks allow. ResNet50's blocks are its bottlenecks; the U-Net's
lie between poolings and up-convolutions, so that skips cross their borders as well.

The first host measures forward and backward of each layer. In both cases the cuts make
the slowest stage as fast as possible. Then all hosts make steps of both pipelines in
turn. Simulated is what the measured times of layers give, without messages.

Each host is a network namespace with a CPU quota and a link of 1 Gbit/s.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    PAUSE,
    Hosts,
    add_hosts_arguments,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios

MODELS = ("resnet50", "unet")
CUTS = ("borders", "anywhere")
LINK = "1gbit"
#: How often a layer is measured; the fastest counts.
REPEAT = 3


def best_cuts(
    seconds: Sequence[float], positions: Sequence[int], n_stages: int
) -> list[int]:
    """Returns the cuts with the fastest slowest stage.

    By dynamic programming: the best stages that end at a position are the best ones,
    one less, that end at an earlier position, and one more.

    Args:
        seconds: Seconds of each layer.
        positions: Positions at which the model may be cut.
        n_stages: Number of stages.
    """
    until = [0.0, *accumulate(seconds)]
    ends = [*sorted(positions), len(seconds)]
    best = {end: (until[end], [0, end]) for end in ends}
    for _ in range(n_stages - 1):
        best = {
            end: min(
                (max(slowest, until[end] - until[cuts[-1]]), [*cuts, end])
                for slowest, cuts in best.values()
                if cuts[-1] < end
            )
            for end in ends
            if any(other < end for other in best)
        }
    return best[len(seconds)][1]


def make_model(job: dict) -> tuple[Any, list[int]]:
    """Returns a model, and the positions at which its blocks begin."""
    import chainer.links as L

    from divisible.skips import Stash
    from examples.train.models.resnet50 import ResNet50
    from examples.unet.model import UNet

    if job["model"] == "resnet50":
        model = ResNet50(image_size=job["size"], cut_inside_blocks=True)
        starts = [i for i, layer in enumerate(model) if isinstance(layer, Stash)]
        # The average and the fully connected layer follow the last block.
        return model, [*starts, len(model) - 2]
    model = UNet(n_channels=3, width=job["width"], depth=4)
    pooled = [i + 2 for i, layer in enumerate(model) if isinstance(layer, Stash)]
    raised = [i for i, li in enumerate(model) if isinstance(li, L.Deconvolution2D)]
    return model, pooled + raised


def layer_seconds(model: Any, x: Any) -> list[tuple[float, float]]:
    """Measures forward and backward of each layer, on one microbatch.

    In CPU time: a quota gives out wall time in pieces longer than a layer takes.

    Args:
        model: The undivided model.
        x: The microbatch.
    """
    seconds, skipped = [], {}
    for position in range(len(model)):
        layer = model.view(position, position + 1)
        times = []
        for _ in range(REPEAT):
            inputs, brought = _leaves(x), {k: _leaves(v) for k, v in skipped.items()}
            start = time.process_time()
            outputs, handed_over = layer.run(inputs, brought)
            middle = time.process_time()
            for y in outputs if isinstance(outputs, tuple) else (outputs,):
                y.grad = y.xp.ones_like(y.array)
                y.backward()
            end = time.process_time()
            times.append((middle - start, end - middle))
        seconds.append(tuple(map(min, zip(*times))))
        x, skipped = outputs, handed_over
    return seconds


def _leaves(values: Any) -> Any:
    """Returns new variables of the same arrays, without what computed them."""
    import chainer

    if isinstance(values, tuple):
        return tuple(map(_leaves, values))
    return chainer.Variable(chainer.as_array(values))


def work(job: dict) -> dict:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    import numpy as np
    from mpi4py import MPI

    from benchmarks.common.perceptron import step_seconds
    from divisible import simulate
    from divisible.schedules import Costs
    from pipeline import Pipeline

    comm = MPI.COMM_WORLD
    np.random.seed(0)
    model, borders = make_model(job)
    size, n = job["size"], job["batch"]
    x = np.random.rand(n, 3, size, size).astype(np.float32)
    shape = n if job["model"] == "resnet50" else (n, size, size)
    t = np.random.randint(0, 2, shape).astype(np.int32)

    measured: list = []
    microbatch = x[: n // job["microbatches"]]
    step_seconds(
        comm,
        # The others sleep.
        lambda: comm.rank or measured.extend(layer_seconds(model, microbatch)),
        PAUSE,
    )
    layers = np.array(comm.bcast(measured))
    allowed = {"borders": borders, "anywhere": list(range(1, len(model)))}
    answer: dict[str, Any] = {name: {} for name in CUTS}
    pipes = {}
    for name in CUTS:
        cuts = best_cuts(layers.sum(axis=1).tolist(), allowed[name], comm.size)
        stage = model.divide(cuts[comm.rank], cuts[comm.rank + 1])
        pipes[name] = Pipeline(
            stage, comm, n_microbatches=job["microbatches"], timeout=600
        )
        stages = np.add.reduceat(layers, cuts[:-1])
        timeline = simulate(pipes[name].schedule, Costs(stages[:, 0], stages[:, 1], 0))
        answer[name] = {
            "cuts": cuts,
            "slowest": stages.sum(axis=1).max() / layers.sum(),
            "simulated": timeline.makespan,
        }

    def seconds_of(name: str) -> float:
        return step_seconds(comm, lambda: pipes[name].step(x, t), PAUSE)

    for name in CUTS:
        seconds_of(name)
    seconds = alternate({name: name for name in CUTS}, job["rounds"], seconds_of)
    for name in CUTS:
        answer[name]["seconds"] = seconds[name]
    return answer


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--size", type=int, default=32, help="pixels per side")
    parser.add_argument("--width", type=int, default=32, help="of the U-Net")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=900, help="seconds a row")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("cut_inside_blocks", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"1F1B, {arguments.microbatches} microbatches, batch {arguments.batch} of "
        f"{arguments.size} x {arguments.size} pixels; hosts with equal shares of "
        f"{arguments.cpu:g} cores, links of {LINK}; {arguments.rounds} rounds; median "
        "(min..max)",
        "slowest: the slowest stage's part of all layers' time",
    )
    options = ("size", "width", "batch", "microbatches", "rounds")
    job = {name: getattr(arguments, name) for name in options}
    for model in arguments.models:
        for n in arguments.hosts:
            hosts = Hosts(n, arguments.cpu / n, LINK)
            answer = run(
                hosts,
                __spec__.name,
                {**job, "model": model},
                arguments.timeout,
            )
            result.write("", f"{model}, {n} hosts")
            for name in CUTS:
                one = answer[name]
                result.write(
                    f"  {name:<8} slowest {one['slowest']:4.0%}, step "
                    f"{statistics.median(one['seconds']):6.2f} s, cut at "
                    + " ".join(map(str, one["cuts"][1:-1]))
                )
            slow, fast = (answer[name] for name in CUTS)
            result.write(
                "  borders/anywhere, measured"
                f" {ratios(slow['seconds'], fast['seconds'])}, simulated"
                f" {slow['simulated'] / fast['simulated']:.2f}"
            )
    result.save()


if __name__ == "__main__":
    main()
