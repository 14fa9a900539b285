"""Trains a network on handwritten digits to a tenth of its weights, in 8 bits.

    mpiexec -n 2 python examples/smaller_model/train.py
    mpiexec -n 2 python examples/smaller_model/train.py --channels 0.5

While the stages train, most weights are set to zero, in steps, and then all layers
compute with 8 bits. Rank 0 loads the trained network and applies the plan. It prints
the bytes of files, compressed as by save_npz, and the accuracies. The same elements are
pruned on any number of ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.training import Trainer, extensions
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from divisible import Divisible, Plan
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    plot_progress,
)
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    ProgressLine,
    abort_on_error,
    export_npz,
    save_snapshot,
)

comm = MPI.COMM_WORLD


class Network(Divisible):
    """Two convolutions with batch normalization, and a linear layer."""

    def __init__(self) -> None:
        self.append(L.Convolution2D(1, 16, 3, pad=1, nobias=True))
        self.append(L.BatchNormalization(16))
        self.append(F.relu)
        self.append(L.Convolution2D(16, 32, 3, stride=2, pad=1, nobias=True))
        self.append(L.BatchNormalization(32))
        self.append(F.relu)
        self.append(L.Linear(32 * 4 * 4, 10))


def main() -> None:
    """Trains, compresses, and compares."""
    abort_on_error()
    args = parse_arguments()
    np.random.seed(0)
    model = Network()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD(0.02).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=args.microbatches)

    x, t = load_digits(return_X_y=True)
    x, t = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8), t.astype(np.int32)
    x, x_test, t, t_test = train_test_split(x, t, random_state=0)
    tests = SerialIterator(TupleDataset(x_test, t_test), 75, False, False)
    updater = PipelineUpdater(SerialIterator(TupleDataset(x, t), 64), optimizer, pipe)
    trainer = Trainer(updater, (args.epoch, "epoch"), args.out)
    plan = plan_of(args)
    trainer.extend(PipelineEvaluator(tests, pipe))
    trainer.extend(Compress(plan, optimizer, pipeline=pipe))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/accuracy"]
    columns += ["compress/sparsity", "compress/bits"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.extend(ProgressLine())
    if comm.rank == 0:
        print(plan)
    trainer.run()

    save_snapshot(f"{args.out}/trained", pipe, optimizer)
    if comm.rank == 0:
        compare(plan, Path(args.out), x_test, t_test)


def plan_of(args: argparse.Namespace) -> CompressionPlan:
    """Returns the plan: the first layer, of few weights, is pruned least."""
    begin, end = (args.epoch / 10, "epoch"), (args.epoch / 2, "epoch")
    course = {"begin": begin, "end": end}
    if args.channels:
        layers = ["/0", "/3"]
        rules = [
            Prune(
                "l2", layers=layers, to=args.channels, granularity="channel", **course
            )
        ]
    else:
        rules = [
            Prune("magnitude", layers="/0", to=0.25, **course),
            Prune("magnitude", layers=["/3", "/6"], to=0.91, **course),
        ]
    late = (args.epoch * 0.7, "epoch")
    return CompressionPlan(
        [*rules, Quantize("int8", layers="*", targets=["weight", "input"], begin=late)]
    )


def compare(plan: CompressionPlan, out: Path, x: np.ndarray, t: np.ndarray) -> None:
    """Writes the trained network and the one that the plan makes of it."""
    export_npz(out / "trained", out / "trained.npz")
    model = plan.prepare(Network())
    chainer.serializers.load_npz(out / "trained.npz", model)
    dense = Network()
    chainer.serializers.save_npz(out / "dense.npz", dense)
    small = apply(model, plan)
    chainer.serializers.save_npz(out / "small.npz", small)
    for name, each in (("trained", model), ("small", small)):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            accuracy = float(F.accuracy(each(x), t).array)
        size = (out / f"{name}.npz").stat().st_size
        print(f"{name:<8}{size:8} bytes, test accuracy {accuracy:.1%}")
    size = (out / "dense.npz").stat().st_size
    print(f"a network that keeps all its weights has {size} bytes")
    plot_progress(out / "log", "validation/main/accuracy", out / "course.png")


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epoch", type=int, default=30, help="number of epochs")
    add("--microbatches", type=int, default=4, help="microbatches of a minibatch")
    add("--channels", type=float, help="the part of channels to remove instead")
    add("--out", default="result", help="folder for the log, files and picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
