"""How long training steps take in Chainer and in PyTorch.

    OMP_NUM_THREADS=1 python -m benchmarks.against_torch

The same models with the same weights are trained on the same minibatches in several
variants. Chainer is stock, or has the kernels of this project as installed, without or
with oneDNN, and without or with fused layers. PyTorch has both of its memory layouts.
Each variant has a process of its own, with the C library's usual allocation of memory,
and they take turns, step by step. Forward, backward and update are timed apart: CPU
seconds with one thread, seconds of the wall clock with several.

All variants train the same: the first losses, without dropout, are compared first. The
aims are ratios to PyTorch's step in its default layout.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.against_torch.models import WORKLOADS
from benchmarks.against_torch.trainers import PHASES, make_trainer
from benchmarks.against_torch.workers import Worker
from benchmarks.common.results import Result, alternate, command, machine, ratios


class Variant(NamedTuple):
    """A way of training that is compared.

    Attributes:
        kind: ``'chainer'`` or ``'torch'``.
        options: Options of the trainer.
        environment: Environment of the trainer's process.
    """

    kind: str
    options: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}


STOCK, DEFAULT, ONEDNN = "stock Chainer", "with kernels", "and oneDNN"
FUSED, ONEDNN_FUSED = "with kernels, fused", "and oneDNN, fused"
TORCH, CHANNELS_LAST, COMPILED = "torch", "torch, channels last", "torch.compile"
_OFF = {"CHAINER_KERNELS": "0"}
_BLAS = {"CHAINER_KERNELS_PROVIDER": "blas"}
_ONEDNN = {"CHAINER_KERNELS_PROVIDER": "onednn"}
VARIANTS = {
    STOCK: Variant("chainer", environment=_OFF),
    DEFAULT: Variant("chainer", environment=_BLAS),
    FUSED: Variant("chainer", {"fused": True}, _BLAS),
    ONEDNN: Variant("chainer", environment=_ONEDNN),
    ONEDNN_FUSED: Variant("chainer", {"fused": True}, _ONEDNN),
    TORCH: Variant("torch", environment=_OFF),
    CHANNELS_LAST: Variant("torch", {"channels_last": True}, _OFF),
    COMPILED: Variant("torch", {"compiled": True}, _OFF),
}
#: Steps that are to take at most so many of PyTorch's in its default layout, with one
#: thread; with more, `AIM_OF_THREADS`.
AIMS = {
    DEFAULT: dict(vgg16=1.2, resnet50=1.0, lstm=1.0, transformer=1.0, mlp=1.0),
    ONEDNN: dict(vgg16=0.97, resnet50=0.97, lstm=0.92, transformer=0.85, mlp=0.92),
    ONEDNN_FUSED: dict(resnet50=0.92, transformer=0.8),
}
AIM_OF_THREADS = 1.05
#: Number of losses that are compared, and how far each may be from PyTorch's. Later
#: losses multiply the rounding of the weights many times over.
TOLERANCES = (1e-4, 2e-2)


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--rounds", type=int, default=5)
    add("--compile", action="store_true", help="torch.compile as well; it takes long")
    add("--output", type=Path)
    arguments = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads < 1:
        parser.error("set OMP_NUM_THREADS, to 1 or to the number of idle cores")
    variants = dict(VARIANTS)
    if not arguments.compile:
        del variants[COMPILED]
    if not _has_onednn():
        del variants[ONEDNN], variants[ONEDNN_FUSED]

    result = Result("against_torch", arguments.output)
    clock = "CPU" if threads == 1 else "wall clock"
    result.write(
        command(f"OMP_NUM_THREADS={threads}"),
        machine("numpy", "numba", "chainer", "torch"),
        f"{arguments.rounds} rounds; ms of the {clock}, medians; ratios of steps to"
        " torch's, median (min..max)",
        "",
    )
    for name in arguments.models:
        chosen = {
            who: variant
            for who, variant in variants.items()
            if WORKLOADS[name].is_convolutional or who != CHANNELS_LAST
            if WORKLOADS[name].as_list or who not in (FUSED, ONEDNN_FUSED)
        }
        with contextlib.ExitStack() as stack:
            workers = {}
            for who, variant in chosen.items():
                workers[who] = Worker(
                    f"{who} ({name})",
                    make_trainer,
                    *(variant.kind, name, threads > 1, variant.options),
                    environment=variant.environment,
                )
                stack.callback(workers[who].close)
            compare(result, name, workers, arguments.rounds, threads)
    result.save()


def _has_onednn() -> bool:
    """Returns whether oneDNN is installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version("onednn-cpu-gomp"))
    return False


def compare(
    result: Result, name: str, workers: Mapping[str, Worker], rounds: int, threads: int
) -> None:
    """Measures the steps of a model and writes its part of the result."""
    for worker in workers.values():
        worker.send("first_losses", len(TOLERANCES))
    losses = {who: worker.receive() for who, worker in workers.items()}
    for who, its in losses.items():
        for one, other, tolerance in zip(its, losses[TORCH], TOLERANCES):
            if not abs(one - other) <= tolerance * abs(other):
                raise SystemExit(f"{who} trains another {name}: {losses}")

    for who in (COMPILED, FUSED, ONEDNN_FUSED):
        if who in workers:
            # They compile, or choose, once more where there is dropout.
            workers[who].call("step")
    times: dict[str, list[list[float]]] = {who: [] for who in workers}

    def seconds_of(who: str) -> float:
        times[who].append(workers[who].call("step"))
        return sum(times[who][-1])

    steps = alternate({who: who for who in workers}, rounds, seconds_of)
    result.write(
        f"{WORKLOADS[name].title}; first losses {losses[TORCH][0]:.4f},"
        f" {losses[TORCH][1]:.4f}",
        f"  {'':<22}"
        + "".join(f"{phase:>9}" for phase in (*PHASES, "step"))
        + f"  {'to torch':<20}   aim  peak, GB",
    )
    for who, its in times.items():
        medians = [statistics.median(phase) for phase in (*zip(*its), steps[who])]
        aim = AIMS.get(who, {}).get(name)
        if threads > 1 and who in (DEFAULT, ONEDNN):
            aim = AIM_OF_THREADS
        result.write(
            f"  {who:<22}"
            + "".join(f"{1e3 * seconds:9.0f}" for seconds in medians)
            + f"  {ratios(steps[who], steps[TORCH]):<20}"
            + f" {'' if aim is None else f'{aim:.2f}':>5}"
            + f" {workers[who].call('peak_memory') / 1e9:9.2f}"
        )
    result.write()


if __name__ == "__main__":
    main()
