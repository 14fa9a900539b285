"""How long training steps take in Chainer and in PyTorch.

    OMP_NUM_THREADS=1 python -m benchmarks.against_torch

The same models with the same weights are trained on the same minibatches in several
variants. Chainer is stock, or has the kernels of this project as installed, without or
with oneDNN, and without or with fused layers. PyTorch has both of its memory layouts.
Each variant has a process of its own, with the C library's usual allocation of memory,
and they take turns, step by step. Forward, backward and update are timed apart: CPU
seconds with one thread, seconds of the wall clock with several.

All variants train the same: the first losses, without dropout, are compared first. The
aims are ratios to PyTorch's step in its default layout. With ``--bfloat16`` there are
rows with operands of products rounded to bfloat16, and of two ways of PyTorch to do so,
``torch.autocast`` and ``torch.backends.mkldnn.fp32_precision``. Their ratios are to the
better one of these two.
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
from benchmarks.common import quick
from benchmarks.common.extras import require
from benchmarks.common.results import Result, alternate, command, machine, ratios


class Variant(NamedTuple):
    """A way of training that is compared.

    Attributes:
        kind: ``'chainer'`` or ``'torch'``.
        options: Options of the trainer.
        environment: Environment of the trainer's process.
        is_narrow: Whether operands of products are rounded to bfloat16.
    """

    kind: str
    options: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}
    is_narrow: bool = False


STOCK, DEFAULT, ONEDNN = "stock Chainer", "with kernels", "and oneDNN"
FUSED, ONEDNN_FUSED = "with kernels, fused", "and oneDNN, fused"
TORCH, CHANNELS_LAST, COMPILED = "torch", "torch, channels last", "torch.compile"
NARROW, NARROW_FUSED = "bfloat16 products", "bfloat16 products, fused"
AUTOCAST, NARROW_TORCH = "torch, autocast", "torch, bf16 products"
_OFF = {"CHAINER_KERNELS": "0"}
_BLAS = {"CHAINER_KERNELS_PROVIDER": "blas"}
_ONEDNN = {"CHAINER_KERNELS_PROVIDER": "onednn"}
_NARROW = {**_ONEDNN, "CHAINER_KERNELS_PRODUCTS": "bfloat16"}
VARIANTS = {
    STOCK: Variant("chainer", environment=_OFF),
    DEFAULT: Variant("chainer", environment=_BLAS),
    FUSED: Variant("chainer", {"fused": True}, _BLAS),
    ONEDNN: Variant("chainer", environment=_ONEDNN),
    ONEDNN_FUSED: Variant("chainer", {"fused": True}, _ONEDNN),
    TORCH: Variant("torch", environment=_OFF),
    CHANNELS_LAST: Variant("torch", {"channels_last": True}, _OFF),
    COMPILED: Variant("torch", {"compiled": True}, _OFF),
    NARROW: Variant("chainer", {}, _NARROW, True),
    NARROW_FUSED: Variant("chainer", {"fused": True}, _NARROW, True),
    AUTOCAST: Variant("torch", {"narrow": "autocast"}, _OFF, True),
    NARROW_TORCH: Variant("torch", {"narrow": "products"}, _OFF, True),
}
#: Steps that are to take at most so many of PyTorch's in its default layout, with one
#: thread; with more, `AIM_OF_THREADS`.
AIMS = {
    DEFAULT: dict(vgg16=1.2, resnet50=1.0, lstm=1.0, transformer=1.0, mlp=1.0),
    ONEDNN: dict(vgg16=0.97, resnet50=0.97, lstm=0.92, transformer=0.85, mlp=0.92),
    ONEDNN_FUSED: dict(resnet50=0.92, transformer=0.8),
}
_FUSED = (FUSED, ONEDNN_FUSED, NARROW_FUSED)
AIM_OF_THREADS = 1.05
#: Steps in bfloat16 that are to take at most so much of the better of PyTorch's two.
AIM_OF_NARROW = 1.0
#: Number of losses that are compared, and how far each may be from PyTorch's. Later
#: losses multiply the rounding of the weights many times over, and so does bfloat16.
TOLERANCES, NARROW_TOLERANCES = (1e-4, 2e-2), (5e-2, 2e-1)
#: Options of a quick run.
QUICK = {"models": ["mlp", "lstm"], "rounds": 1}


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--rounds", type=int, default=5)
    add("--compile", action="store_true", help="torch.compile as well; it takes long")
    add("--bfloat16", action="store_true", help="products in bfloat16 as well")
    add("--output", type=Path)
    arguments = quick.parse(parser, "against_torch", QUICK)
    require(parser, "torch", "benchmarks")
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads < 1:
        parser.error("set OMP_NUM_THREADS, to 1 or to the number of idle cores")
    variants = dict(VARIANTS)
    if not arguments.compile:
        del variants[COMPILED]
    if not _has_onednn():
        for who in (ONEDNN, ONEDNN_FUSED, NARROW, NARROW_FUSED):
            del variants[who]
    if not arguments.bfloat16:
        variants = {k: each for k, each in variants.items() if not each.is_narrow}

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
            if WORKLOADS[name].as_list or who not in _FUSED
        }
        result.progress(f"{name}: {len(chosen)} trainers begin")
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
        tolerances = NARROW_TOLERANCES if VARIANTS[who].is_narrow else TOLERANCES
        for one, other, tolerance in zip(its, losses[TORCH], tolerances):
            if not abs(one - other) <= tolerance * abs(other):
                raise SystemExit(f"{who} trains another {name}: {losses}")

    for who in (COMPILED, *_FUSED):
        if who in workers:
            # They compile, or choose, once more where there is dropout.
            workers[who].call("step")
    times: dict[str, list[list[float]]] = {who: [] for who in workers}

    def seconds_of(who: str) -> float:
        times[who].append(workers[who].call("step"))
        return sum(times[who][-1])

    steps = alternate({who: who for who in workers}, rounds, seconds_of)
    torches = [who for who in (AUTOCAST, NARROW_TORCH) if who in workers]
    best = min(torches, key=lambda who: statistics.median(steps[who]), default=TORCH)
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
        to = TORCH
        if VARIANTS[who].is_narrow:
            to, aim = best, AIM_OF_NARROW if VARIANTS[who].kind == "chainer" else None
        result.write(
            f"  {who:<22}"
            + "".join(f"{1e3 * seconds:9.0f}" for seconds in medians)
            + f"  {ratios(steps[who], steps[to]):<20}"
            + f" {'' if aim is None else f'{aim:.2f}':>5}"
            + f" {workers[who].call('peak_memory') / 1e9:9.2f}"
        )
    for ours, single in ((NARROW, ONEDNN), (NARROW_FUSED, ONEDNN_FUSED)):
        if ours in workers:
            result.write(f"  {ours} to {single}: {ratios(steps[ours], steps[single])}")
    result.write()


if __name__ == "__main__":
    main()
