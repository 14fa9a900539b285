"""Trains an image classifier whose layers are spread over the ranks of MPI.

    mpiexec -n 2 python examples/train/train.py
    mpiexec -n 4 python examples/train/train.py --model vgg16 --plan auto
    mpiexec -n 4 python examples/train/train.py --model vgg16 --cuts auto
    mpiexec -n 4 python examples/train/train.py --model vgg16 --cuts 7,15,26
    mpiexec -n 2 python examples/train/train.py --float16
    mpiexec -n 2 python examples/train/train.py --products bfloat16 --message-dtype int8
    mpiexec -n 2 python examples/train/train.py --model resnet50 --cut-inside-blocks
    mpiexec -n 3 python examples/train/train.py --snapshots 2 --resume auto

Without a plan there is a stage on each rank; on one rank this is serial training.
Losses and accuracies are the same on any number of ranks, up to rounding. For models
with dropout (vgg16) or batch normalization (resnet50) they depend on the number of
microbatches, and with --message-dtype on the cuts.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import chainer
import data
import numpy as np
from epochs import epochs
from models.cnn import CNN
from models.mlp import MLP
from models.resnet50 import ResNet50
from models.vgg16 import VGG16
from mpi4py import MPI
from options import Parser, integers, planned, say

import chainer_kernels
from divisible import Divisible, deferred_init
from mixed_precision import MixedPrecision, to_float16
from pipeline import (
    Pipeline,
    abort_on_error,
    latest_snapshot,
    load_snapshot,
    save_snapshot,
)

comm = MPI.COMM_WORLD

OPTIMIZERS = {
    "momentum": chainer.optimizers.MomentumSGD,
    "sgd": chainer.optimizers.SGD,
    "adam": chainer.optimizers.Adam,
}

# The optimizer and learning rate that suit a model.
DEFAULTS = {
    "cnn": ("momentum", 0.05),
    "mlp": ("momentum", 0.05),
    "vgg16": ("adam", 0.0003),
    "resnet50": ("adam", 0.001),
}


def main() -> None:
    """Trains, tests after every epoch, and writes the log."""
    # From here on, an error on one rank ends all ranks.
    abort_on_error()
    started = time.perf_counter()
    parser = make_parser()
    args = parser.parse_args()
    check(parser, args)
    if args.products is not None:
        chainer_kernels.set_products(args.products)

    # Every rank loads the same data, but only the first stage reads the images and only
    # the last one the classes. Every rank builds the same model, and will make its own
    # layers only.
    np.random.seed(args.seed)
    with parser.refusing():
        train, test = load(args)
        with deferred_init(args.seed):
            model = make_model(args, train.x.shape[1:])
    if args.float16:
        model = to_float16(model)
        # All ranks skip a step together.
        actual = OPTIMIZERS[args.optimizer](args.learning_rate)
        optimizer = MixedPrecision(actual, comm=comm)
    else:
        optimizer = OPTIMIZERS[args.optimizer](args.learning_rate)
    # Each rank keeps the layers that the plan gives to it.
    with parser.refusing():
        pipe = Pipeline(
            model,
            comm,
            seed=args.seed,
            loss_scale=optimizer.loss_scale if args.float16 else None,
            message_dtype=args.message_dtype,
            **planned(args, model, train),
        )
    del model
    optimizer = pipe.setup(optimizer)
    if comm.rank == 0:
        # Before the training, not after it.
        with parser.refusing():
            os.makedirs(args.out, exist_ok=True)
    say(f"{args.model} on {args.dataset}: {len(train.x)} images of {train.x.shape[1:]}")
    plan = pipe.plan
    say(f"{plan.n_layers} layers cut at {plan.cuts}, {plan.schedule} schedule")
    say("epoch   train loss  accuracy   test loss  accuracy   samples/s")

    log = []
    shuffle = np.random.RandomState(args.seed)
    state = {"shuffle": shuffle}
    with parser.refusing():
        resume = latest_snapshot(args.out) if args.resume == "auto" else args.resume
    if resume is not None:
        with parser.refusing():
            log = load_snapshot(resume, pipe, optimizer, state=state).values["log"]
        say(f"resumed from {resume}, after {len(log)} epochs")
        if len(log) >= args.epoch:
            # Not an error: a batch system would start the job again, and again.
            say("nothing is left to do; a larger --epoch continues")
            return
        # The time of the run that is continued counts as well.
        started -= log[-1]["elapsed_time"]
    for epoch in epochs(pipe, optimizer, train, test, args, shuffle, len(log)):
        entry = {
            "epoch": epoch.number,
            "iteration": pipe.n_steps,
            "elapsed_time": time.perf_counter() - started,
            "samples_per_second": len(train.x) / epoch.seconds,
            **{f"main/{name}": value for name, value in epoch.train.items()},
            **{f"validation/main/{name}": value for name, value in epoch.test.items()},
        }
        log.append(entry)
        say(
            f"{epoch.number:5d} {entry['main/loss']:12.4f}"
            f" {entry['main/accuracy']:9.4f} {entry['validation/main/loss']:11.4f}"
            f" {entry['validation/main/accuracy']:9.4f}"
            f" {entry['samples_per_second']:11.0f}"
        )

        if comm.rank == 0:
            write_log(log, args.out)
        if args.snapshots:
            path = os.path.join(args.out, f"snapshot_epoch_{epoch.number}")
            values = {"log": log}
            save_snapshot(
                path,
                pipe,
                optimizer,
                state=state,
                values=values,
                n_retains=args.snapshots,
            )

    say(f"test accuracy {log[-1]['validation/main/accuracy']:.2%}")
    if comm.rank == 0:
        path = os.path.join(args.out, "log")
        say(f"log written to {path}, after {log[-1]['elapsed_time']:.0f} s")
        path = os.path.join(args.out, "timeline")
        epoch.timeline.save(f"{path}.json")
        epoch.timeline.plot(f"{path}.png")
        say(f"the last minibatch's timeline is in {path}.json and {path}.png")


def write_log(log: list[dict], folder: str) -> None:
    """Writes the log so far, in the format of Chainer's LogReport."""
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as file:
        json.dump(log, file, indent=4)


def load(args: argparse.Namespace) -> tuple[data.Images, data.Images]:
    """Returns the training and the test set, in the size that the model takes."""
    # Rank 0 goes first, so that a data set is downloaded once.
    downloads = args.dataset in data.DOWNLOADED
    if downloads and comm.rank > 0:
        comm.Barrier()
    sets = data.load(args.dataset, args.shape, args.samples)
    if downloads and comm.rank == 0:
        comm.Barrier()
    if args.model in ("vgg16", "resnet50"):
        sets = tuple(data.enlarge(images, 3, args.size) for images in sets)
    return sets


def make_model(args: argparse.Namespace, shape: tuple[int, int, int]) -> Divisible:
    """Makes the model asked for, for images of this shape."""
    if args.model == "mlp":
        return MLP(args.units, args.layers, n_inputs=int(np.prod(shape)))
    if args.model == "cnn":
        return CNN(image_shape=shape)
    if args.model == "vgg16":
        return VGG16(image_size=args.size, dropout=args.dropout)
    return ResNet50(
        image_size=args.size,
        batch_normalization=not args.no_batch_normalization,
        cut_inside_blocks=args.cut_inside_blocks,
    )


def make_parser() -> Parser:
    """Describes the options."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", choices=DEFAULTS, default="cnn")
    add("--dataset", choices=data.NAMES, default="digits")
    parser.add_pipeline_arguments()
    add("--optimizer", choices=OPTIMIZERS, help="default: by model")
    add("--learning-rate", type=float, help="default: by model")
    add("--float16", action="store_true", help="train in mixed precision")
    add("--products", choices=("float32", "bfloat16"), help="numbers of products")
    add("--out", default="result", help="folder for the log and snapshots")
    add("--snapshots", type=int, default=0, help="number to keep; one each epoch")
    add("--resume", help="snapshot to resume; auto: the newest in --out, if any")
    add("--units", type=int, default=256, help="units of the mlp's layers")
    add("--layers", type=int, default=4, help="layers of the mlp")
    add("--dropout", type=float, default=0.5, help="ratio for vgg16; 0 for none")
    add("--no-batch-normalization", action="store_true", help="for resnet50")
    add("--cut-inside-blocks", action="store_true", help="for resnet50")
    add("--size", type=int, default=32, help="pixels per side for vgg16 and resnet50")
    add("--samples", type=int, default=1000, help="size of the synthetic data set")
    add(
        "--shape",
        type=integers,
        default=[3, 32, 32],
        help="synthetic images: channels,height,width",
    )
    return parser


def check(parser: Parser, args: argparse.Namespace) -> None:
    """Refuses wrong options, and fills in those that depend on the model."""
    if args.optimizer is not None and args.learning_rate is None:
        parser.error("--optimizer needs a --learning-rate to go with it")
    optimizer, learning_rate = DEFAULTS[args.model]
    args.optimizer = args.optimizer or optimizer
    if args.learning_rate is None:
        args.learning_rate = learning_rate
    parser.check_positive(args, "epoch", "batchsize", "microbatches", "units", "layers")
    if args.samples < 2:
        parser.error(f"--samples must be 2 at least, not {args.samples}")
    if args.size < 32:
        parser.error(f"--size must be 32 at least, not {args.size}")
    if len(args.shape) != 3 or min(args.shape) < 1:
        parser.error(f"--shape must be three positive numbers, not {args.shape}")
    if not 0 <= args.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, not {args.dropout}")
    if not args.learning_rate > 0:
        parser.error(f"--learning-rate must be positive, not {args.learning_rate}")
    needed = {"matplotlib": "the timeline's picture needs matplotlib"}
    if args.dataset == "digits":
        needed["sklearn"] = "--dataset digits needs scikit-learn"
    parser.check_installed(**needed)


if __name__ == "__main__":
    main()
