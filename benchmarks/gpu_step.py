"""How long training steps take on a GPU, in Chainer and in PyTorch.

    OMP_NUM_THREADS=1 python -m benchmarks.gpu_step

The same models with the same weights are trained on the same minibatches: by stock
Chainer on CuPy, by Chainer with cuDNN, and by PyTorch in both of its memory layouts.
The dtypes are float32, float32 whose products tensor cores round (TF32), and float16
with normalizations in float32. Each variant has a process of its own, for PyTorch
brings another cuDNN than the installed one. They take turns. A step is forward,
backward and update, timed by the wall clock until the GPU is idle.

All variants train the same: the first losses, without dropout, are compared first.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

import chainer_kernels
from benchmarks.against_torch.models import images
from benchmarks.against_torch.workers import Worker
from benchmarks.common.extras import require
from benchmarks.common.results import Result, alternate, command, machine, ratios
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from mixed_precision import float32_loss, to_float16

#: Models by their names, their images' sizes, and the size of a minibatch.
WORKLOADS = {
    "vgg16": (VGG16, 32, 256),
    "resnet50": (ResNet50, 32, 256),
}
FLOAT32, TF32, FLOAT16 = "float32", "TF32", "float16"
#: How far the first losses may be from PyTorch's. Later losses multiply the rounding of
#: the weights many times over.
TOLERANCES = {FLOAT32: (1e-4, 5e-2), TF32: (1e-3, 1e-1), FLOAT16: (1e-2, 2e-1)}
#: Steps between two looks at the clock.
_N_STEPS = 3
_LR, _MOMENTUM = 0.01, 0.9


class Variant(NamedTuple):
    """A way of training that is compared.

    Attributes:
        kind: ``'chainer'`` or ``'torch'``.
        channels_last: Whether images and weights have their channels last in memory.
        environment: Environment of the variant's process.
    """

    kind: str
    channels_last: bool = False
    environment: Mapping[str, str] = {}


ALONE, CUDNN, TORCH = "Chainer, CuPy alone", "Chainer with cuDNN", "torch"
VARIANTS = {
    ALONE: Variant("chainer", environment={"CHAINER_CUDNN": "0"}),
    CUDNN: Variant("chainer"),
    TORCH: Variant("torch", environment={"CHAINER_KERNELS": "0"}),
    "torch, channels last": Variant("torch", True, {"CHAINER_KERNELS": "0"}),
}


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--precisions", nargs="+", choices=TOLERANCES, default=list(TOLERANCES))
    add("--rounds", type=int, default=5)
    add("--output", type=Path)
    arguments = parser.parse_args()
    if not chainer.backends.cuda.available:
        parser.error("a GPU and CuPy are needed: docs/howto/install.rst has how")
    require(parser, "torch", "benchmarks")

    result = Result("gpu_step", arguments.output)
    with contextlib.ExitStack() as stack:
        workers = {}
        for who, variant in VARIANTS.items():
            workers[who] = Worker(
                *(who, Trainer, variant.kind, variant.channels_last),
                environment=variant.environment,
            )
            stack.callback(workers[who].close)
            workers[who].send("versions")
        versions = {who: worker.receive() for who, worker in workers.items()}
        result.write(
            command("OMP_NUM_THREADS=1"),
            machine("numpy", "chainer"),
            *(f"{who}: {versions[who]}" for who in (CUDNN, TORCH)),
            f"{arguments.rounds} rounds of {_N_STEPS} steps; ms of a step, and ratios"
            " to torch's: medians (min..max)",
            "",
        )
        for name in arguments.models:
            for precision in arguments.precisions:
                compare(result, name, precision, workers, arguments.rounds)
    result.save()


def compare(
    result: Result,
    name: str,
    precision: str,
    workers: Mapping[str, Worker],
    rounds: int,
) -> None:
    """Measures the steps of a model and writes its part of the result."""
    tolerances = TOLERANCES[precision]
    for worker in workers.values():
        worker.send("first_losses", name, precision, len(tolerances))
    losses = {who: worker.receive() for who, worker in workers.items()}
    for who, its in losses.items():
        for one, other, tolerance in zip(its, losses[TORCH], tolerances):
            if not abs(one - other) <= tolerance * abs(other):
                raise SystemExit(
                    f"{who} trains another {name} in {precision}: {losses}"
                )
    steps = alternate(workers, rounds, lambda worker: worker.call("seconds"))
    model, size, n = WORKLOADS[name]
    result.write(
        f"{model.__name__}, {size} x {size} pixels, batch {n}, {precision};"
        f" first losses {losses[TORCH][0]:.4f}, {losses[TORCH][1]:.4f}"
    )
    for who, seconds in steps.items():
        ms = [1e3 * s for s in seconds]
        result.write(
            f"  {who:<22}{statistics.median(ms):9.2f} ({min(ms):.2f}..{max(ms):.2f})"
            f"   {ratios(seconds, steps[TORCH])}"
        )
    result.write()


class Trainer:
    """Trains one model after the other.

    Args:
        kind: ``'chainer'`` or ``'torch'``.
        channels_last: Whether images and weights have their channels last in memory.
    """

    def __init__(self, kind: str, channels_last: bool) -> None:
        self._prepare = {"chainer": _chainers, "torch": _torches}[kind]
        self._channels_last = channels_last

    def versions(self) -> str:
        """Returns the versions of what computes here."""
        if self._prepare is _torches:
            import torch

            return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        import cupy

        from chainer_kernels.providers import cudnn

        card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return f"{card}, CuPy {cupy.__version__}, cuDNN {cudnn.version()}"

    def first_losses(self, name: str, precision: str, n: int) -> list[float]:
        """Takes another model; returns the losses of first steps, without dropout."""
        build, size, batch = WORKLOADS[name]
        np.random.seed(0)
        chainer.global_config.dtype = np.float32
        model = build()
        x, t = images(size, batch)
        # On the CPU, layers learn the number of their inputs from a first one.
        with (
            chainer_kernels.disabled(),
            chainer.no_backprop_mode(),
            chainer.using_config("train", False),
        ):
            model(x[:1])
        self._step, self._wait = self._prepare(
            model, x, t, precision, self._channels_last
        )
        losses = [float(self._step(False)) for _ in range(n)]
        # Dropout has kernels to be compiled, too.
        self._step(True)
        return losses

    def seconds(self) -> float:
        """Returns how long a step takes."""
        self._wait()
        start = time.perf_counter()
        for _ in range(_N_STEPS):
            self._step(True)
        self._wait()
        return (time.perf_counter() - start) / _N_STEPS


Prepared = tuple[Callable[[bool], Any], Callable[[], None]]


def _chainers(
    model: chainer.Link, x: np.ndarray, t: np.ndarray, precision: str, _: bool
) -> Prepared:
    """Returns what trains once, with dropout or without, and what waits for it."""
    import cupy

    cores = "always" if precision == TF32 else "auto"
    chainer.global_config.use_cudnn_tensor_core = cores
    if precision == FLOAT16:
        model, x = to_float16(model), x.astype(np.float16)
    model.to_device("@cupy:0")
    x, t = cupy.asarray(x), cupy.asarray(t)
    optimizer = chainer.optimizers.MomentumSGD(_LR, _MOMENTUM).setup(model)
    model.cleargrads()
    has_dropout = _has_dropout(model)
    loss_of = float32_loss(F.softmax_cross_entropy)

    def step(is_training: bool) -> Any:
        with chainer.using_config("train", is_training or not has_dropout):
            loss = loss_of(model(x), t)
        loss.backward()
        optimizer.update()
        model.cleargrads()
        return loss.array

    return step, cupy.cuda.Device().synchronize


def _has_dropout(model: chainer.Link) -> bool:
    """Returns whether a model has dropout; then it has no batch normalization here."""
    return isinstance(model, VGG16)


def _torches(
    model: chainer.Link, x: np.ndarray, t: np.ndarray, precision: str, last: bool
) -> Prepared:
    """Returns what trains once, with dropout or without, and what waits for it."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.against_torch.torch_models import converted

    has_dropout = _has_dropout(model)
    torch.backends.cudnn.allow_tf32 = precision == TF32
    module = converted(model).cuda()
    images, classes = torch.from_numpy(x).cuda(), torch.from_numpy(t).long().cuda()
    if precision == FLOAT16:
        module, images = module.half(), images.half()
        for each in module.modules():
            if isinstance(each, torch.nn.BatchNorm2d):
                each.float()
    if last:
        module = module.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), _LR, _MOMENTUM)

    def step(is_training: bool) -> Any:
        module.train(is_training or not has_dropout)
        loss = cross_entropy(module(images).float(), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, torch.cuda.synchronize


if __name__ == "__main__":
    main()
