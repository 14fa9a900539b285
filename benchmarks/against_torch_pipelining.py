"""A step on two cores: our pipeline and ``torch.distributed.pipelining`` in turn.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.against_torch_pipelining

The same models with the same weights are trained on the same minibatches, cut in two,
or in four with two stages on each rank. Cuts make the slowest stage as fast as
possible, by the layers' times in either framework. PyTorch runs each of its schedules
over gloo, in a process beside each rank. Ours is ``schedule='auto'`` with one stage on
a rank, and with two in V. The undivided steps on one core are measured as well. No
optimizer runs. With ``--layers torch`` our pipelines have the same modules of PyTorch
as layers, with our schedules and with PyTorch's. The losses of all are compared.

``CHAINER_KERNELS_PROVIDER`` selects the provider of products and convolutions in ours.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from benchmarks.against_torch.models import (
    Transformer,
    TransformerWithoutDropout,
    images,
    texts,
)
from benchmarks.against_torch.workers import Worker
from benchmarks.common.extras import require
from benchmarks.common.perceptron import minibatch, mlp, step_seconds, undivided_step
from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    quiet_barrier,
    ratios,
)
from benchmarks.common.two_ranks import two_ranks
from chainer_kernels import providers
from divisible import Divisible, Profile, partition, profile
from examples.train.models.vgg16 import VGG16
from pipeline import Pipeline

PAUSE = 0.002
#: With `'auto'`, the schedule is another one from the fifth minibatch on.
WARM_UP = 5
#: Libraries that the layers of our pipeline are of.
CHAINER, TORCH = "chainer", "torch"
#: Our kinds of pipelines, and how much of PyTorch's best step their best one may take.
AIMS = {
    "ours": 0.97,
    "ours of PyTorch's layers": 1.0,
    "ours of PyTorch's layers and schedules": 1.03,
}
#: Words of a text.
N_WORDS = 64
PLACEMENTS = {"one stage a rank": (0, 1), "two in V": (0, 1, 1, 0)}


class Model(NamedTuple):
    """A model to train, and its minibatch.

    Attributes:
        title: Title of the model, with the size of its minibatch.
        build: Makes the model.
        batch: Makes a minibatch.
        as_link: Makes the same model as the link that PyTorch's modules are made of;
            ``None`` if these are made of the layers.
    """

    title: str
    build: Callable[[], Divisible]
    batch: Callable[[], tuple[np.ndarray, np.ndarray]]
    as_link: Callable[[], chainer.Link] | None = None

    @property
    def source(self) -> Callable[[], chainer.Link]:
        """Makes what becomes modules of PyTorch."""
        return self.as_link or self.build


def build_mlp() -> Divisible:
    """Makes the perceptron, with its weights."""
    np.random.seed(0)
    model = mlp(1024, 32)
    with chainer.no_backprop_mode():
        model(np.zeros((1, 1024), np.float32))
    return model


def mlp_batch() -> tuple[np.ndarray, np.ndarray]:
    """Makes a minibatch of the perceptron."""
    return minibatch(1024, 1200)


def build_vgg16() -> Divisible:
    """Makes VGG16 without dropout, so that losses can be compared."""
    np.random.seed(0)
    return VGG16(dropout=0)


def vgg16_batch() -> tuple[np.ndarray, np.ndarray]:
    """Makes a minibatch of VGG16."""
    return images(32, 84)


def transformer() -> Transformer:
    """Makes the Transformer as a link."""
    np.random.seed(0)
    return TransformerWithoutDropout(N_WORDS)


def build_transformer() -> Divisible:
    """Makes the Transformer as a list of layers."""
    return transformer().as_list()


def transformer_batch() -> tuple[np.ndarray, np.ndarray]:
    """Makes a minibatch of texts, and the words that follow."""
    x, t = texts(Transformer.N_WORDS, 36, N_WORDS)
    return x, t.reshape(x.shape)


def loss_of(y: chainer.Variable, t: np.ndarray) -> chainer.Variable:
    """Returns the loss of a row of scores for each target."""
    return F.softmax_cross_entropy(y, t.ravel())


MODELS = {
    "mlp1024": Model(
        "perceptron, 32 layers of 1024 units, batch 1200", build_mlp, mlp_batch
    ),
    "vgg16": Model("VGG16, 32 x 32 pixels, batch 84", build_vgg16, vgg16_batch),
    "transformer": Model(
        f"Transformer, 4 layers of 256 units, 36 texts of {N_WORDS} words",
        build_transformer,
        transformer_batch,
        transformer,
    ),
}


def build_of(name: str, layers: str) -> Divisible:
    """Makes a model, of layers of Chainer or of PyTorch, with the same weights."""
    if layers == CHAINER:
        return MODELS[name].build()
    from benchmarks.against_torch.torch_models import converted
    from benchmarks.against_torch.torch_pipelines import units_of
    from torch_layers import TorchLayer

    return Divisible(*map(TorchLayer, units_of(converted(MODELS[name].source()))))


@functools.cache
def layer_costs(name: str, layers: str, n_samples: int) -> Profile:
    """Measures the costs of a model's layers for a microbatch."""
    x, t = (array[:n_samples] for array in MODELS[name].batch())
    return profile(build_of(name, layers), x, t, loss_of, repeat=3)


class Ours:
    """A rank of our pipeline.

    Args:
        kind: A key of `AIMS`.
        placement: Rank of each stage.
        n_microbatches: Number of microbatches.
        name: Name of the model.
        layers: Library of the layers.
        schedule: Name of the schedule.
    """

    def __init__(
        self,
        kind: str,
        placement: Sequence[int],
        n_microbatches: int,
        name: str,
        layers: str,
        schedule: str,
    ) -> None:
        comm = MPI.COMM_WORLD
        self.kind = kind
        self._batch = x, _ = MODELS[name].batch()
        model = build_of(name, layers)
        cuts = None
        if comm.rank == 0:
            costs = layer_costs(name, layers, len(x) // n_microbatches)
            cuts = list(partition(costs, len(placement)).cuts)
        quiet_barrier(comm)
        cuts = comm.bcast(cuts)
        stages = [
            model.divide(start, end)
            for rank, start, end in zip(placement, cuts, cuts[1:])
            if rank == comm.rank
        ]
        self._pipe = Pipeline(
            stages,
            comm,
            n_microbatches=n_microbatches,
            schedule=schedule,
            lossfun=loss_of,
            accfun=None,
        )
        for _ in range(WARM_UP):
            self.loss = self()

    def __call__(self) -> float:
        """Takes one step and returns the loss."""
        return self._pipe.step(*self._batch)["loss"]

    @property
    def schedule(self) -> str:
        """The name of the chosen plan."""
        return self._pipe.schedule.name


class Theirs:
    """A rank of one of PyTorch's pipelines, which another process runs.

    Args:
        worker: The process that runs the pipeline.
        arguments: Arguments of its `step`.
    """

    def __init__(self, worker: Worker, *arguments: Any) -> None:
        self._worker, self._arguments = worker, arguments
        for _ in range(2):
            self.loss = self()

    def __call__(self) -> float | None:
        """Takes one step and returns the loss, where it is known."""
        return self._worker.call("step", *self._arguments)


def make_torch_pipelines(*arguments: Any) -> Any:
    """Makes a rank of PyTorch's pipelines, in its own process."""
    from benchmarks.against_torch.torch_pipelines import TorchPipelines

    return TorchPipelines(*arguments)


def _nothing() -> None:
    pass


def _free_port(comm: MPI.Comm) -> int:
    """Returns the same free port on both ranks."""
    port = None
    if comm.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    return comm.bcast(port)


def variants(
    name: str, microbatches: Sequence[int], layers: Sequence[str], worker: Worker
) -> dict[str, Any]:
    """Makes the variants to compare, each warmed up."""
    made: dict[str, Any] = {"torch, undivided": _nothing, "ours, undivided": _nothing}
    if MPI.COMM_WORLD.rank == 0:
        model = MODELS[name]
        x, t = model.batch()
        serial = undivided_step(model.build(), x, t.ravel())
        made = {
            "torch, undivided": functools.partial(worker.call, "undivided_step"),
            "ours, undivided": serial,
        }
        for step in made.values():
            step()
    for schedule in worker.call("names"):
        for n in microbatches:
            made[f"torch, {schedule}, {n}"] = Theirs(worker, schedule, n)
    ours, with_layers, with_schedules = AIMS
    for library in layers:
        kinds = (ours,) if library == CHAINER else (with_layers, with_schedules)
        for kind in kinds:
            for where, placement in PLACEMENTS.items():
                schedule = "auto"
                if kind == with_schedules:
                    schedule = "zb_v" if placement[2:] else "1f1b"
                for n in microbatches:
                    made[f"{kind}, {where}, {n}"] = Ours(
                        kind, placement, n, name, library, schedule
                    )
    return made


def check_losses(comm: MPI.Comm, made: dict[str, Any]) -> float:
    """Compares the losses of all pipelines, and returns the first."""
    found = {who: one.loss for who, one in made.items() if hasattr(one, "loss")}
    both = comm.allgather(found)
    losses = {who: next(x[who] for x in both if x[who] is not None) for who in found}
    loss = next(iter(losses.values()))
    if not np.allclose(list(losses.values()), loss, rtol=1e-4):
        raise ValueError(f"the losses differ: {losses}")
    return loss


def compare(
    result: Result,
    name: str,
    microbatches: Sequence[int],
    layers: Sequence[str],
    rounds: int,
    worker: Worker,
) -> None:
    """Measures the pipelines of a model and writes its part of the result."""
    comm = MPI.COMM_WORLD
    made = variants(name, microbatches, layers, worker)
    loss = check_losses(comm, made)
    seconds = alternate(made, rounds, lambda step: step_seconds(comm, step, PAUSE))

    def best(pipelines: Iterable[str]) -> str:
        return min(pipelines, key=lambda who: statistics.median(seconds[who]))

    theirs = best(who for who, one in made.items() if isinstance(one, Theirs))
    result.write(f"{MODELS[name].title}; loss {loss:.4f}")
    result.write(f"  {'step, microbatches':<60} {'ms':>6}  to torch's best")
    for who, each in seconds.items():
        line = f"  {who:<60} {1e3 * statistics.median(each):6.0f}"
        line += f"  {ratios(each, seconds[theirs]):<20}"
        if isinstance(made[who], Ours):
            line += f" ran {made[who].schedule}"
        result.write(line)
    for kind, aim in AIMS.items():
        group = [who for who, one in made.items() if getattr(one, "kind", "") == kind]
        if group:
            pairs = zip(seconds[best(group)], seconds[theirs])
            ratio = statistics.median(a / b for a, b in pairs)
            word = "met" if ratio <= aim else f"MISSED by {ratio - aim:.2f}"
            result.write(f"  best {kind}: {ratio:.2f}, aim {aim:.2f}: {word}")
    result.write("")


def main() -> None:
    """Runs the comparison and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--microbatches", type=int, nargs="+", default=[4, 6])
    add("--layers", nargs="+", choices=(CHAINER, TORCH), default=[CHAINER])
    add("--rounds", type=int, default=4)
    add("--output", type=Path)
    arguments = parser.parse_args()
    require(parser, "torch", "benchmarks")
    comm = two_ranks(parser)
    result = Result("against_torch_pipelining", arguments.output, silent=comm.rank != 0)
    provider = os.environ.get("CHAINER_KERNELS_PROVIDER")
    chosen = f" CHAINER_KERNELS_PROVIDER={provider}" if provider else ""
    result.write(
        command(f"OMP_NUM_THREADS=1{chosen} mpiexec -n 2"),
        machine("numpy", "numba", "chainer", "mpi4py", "torch"),
        f"{arguments.rounds} rounds; medians; ratios: median (min..max); products by"
        f" {providers.active().NAME}",
        "",
    )
    for name in arguments.models:
        model = MODELS[name]
        worker = Worker(
            f"PyTorch on rank {comm.rank}",
            make_torch_pipelines,
            *(comm.rank, _free_port(comm), model.source, model.batch),
            arguments.microbatches,
            environment={"CHAINER_KERNELS": "0", "MPI4PY_RC_INITIALIZE": "0"},
        )
        compare(
            result,
            name,
            arguments.microbatches,
            arguments.layers,
            arguments.rounds,
            worker,
        )
        worker.close()
    result.save()


if __name__ == "__main__":
    main()
