"""Trains an image classifier whose layers are spread over the ranks of MPI.

    mpiexec -n 2 python examples/train/train.py
    mpiexec -n 4 python examples/train/train.py --model vgg16 --cuts auto
    mpiexec -n 4 python examples/train/train.py --model vgg16 --cuts 7,15,26
    mpiexec -n 2 python examples/train/train.py --float16

The number of ranks is the number of stages; on one rank this is serial training.
Losses and accuracies are the same on any number of them, up to rounding. Exceptions:
dropout (vgg16) draws other numbers on other stages, and batch normalization (resnet50)
depends on the number of microbatches.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time

import chainer
import data
import numpy as np
from models.cnn import CNN
from models.mlp import MLP
from models.resnet50 import ResNet50
from models.vgg16 import VGG16
from mpi4py import MPI

from divisible import Divisible, Plan, deferred_init, partition, profile
from mixed_precision import MixedPrecision, to_float16
from pipeline import Pipeline, abort_on_error, schedules

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

    # Every rank loads the same data, but only the first stage reads the images and
    # only the last one the classes. Every rank builds the same model, of which it will
    # make its own layers only.
    np.random.seed(args.seed)
    try:
        train, test = load(args)
        with deferred_init(args.seed):
            model = make_model(args, train.x.shape[1:])
        plan = make_plan(args, model, train)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    # The schedule says which stages a rank has; it keeps their layers only.
    schedule = schedules.create(
        args.schedule, plan.n_stages, args.microbatches, comm.size
    )
    mine = schedule.rank_stages(comm.rank)
    stages = [model.divide(*plan.range(number)) for number in mine]
    del model

    make_optimizer = OPTIMIZERS[args.optimizer]
    loss_scale = None
    if args.float16:
        # One for all stages of all ranks: they skip a step together.
        mixed = MixedPrecision(make_optimizer(args.learning_rate), comm=comm)
        optimizers = [mixed.setup([to_float16(stage) for stage in stages])]
        loss_scale = mixed.loss_scale
    else:
        optimizers = [make_optimizer(args.learning_rate).setup(part) for part in stages]
    pipe = Pipeline(
        stages,
        comm,
        schedule=schedule,
        checkpoint=plan.checkpoint,
        loss_scale=loss_scale,
    )
    say(f"{args.model} on {args.dataset}: {len(train.x)} images of {train.x.shape[1:]}")
    say(f"{plan.n_layers} layers cut at {plan.cuts}, {schedule.name} schedule")
    say("epoch   train loss  accuracy   test loss  accuracy   samples/s")

    log = []
    shuffle = np.random.RandomState(args.seed)
    for epoch in range(1, args.epoch + 1):
        start = time.perf_counter()
        train_mean = Mean()
        order = shuffle.permutation(len(train.x))
        for begin in range(0, len(order), args.batchsize):
            batch = order[begin : begin + args.batchsize]
            result = pipe.step(train.x[batch], train.t[batch])
            for optimizer in optimizers:
                optimizer.update()
            train_mean.add(result, len(batch))
        speed = len(order) / (time.perf_counter() - start)
        timeline = pipe.timeline()

        test_mean = Mean()
        for begin in range(0, len(test.x), args.batchsize):
            x, t = (a[begin : begin + args.batchsize] for a in test)
            test_mean.add(pipe.evaluate(x, t), len(x))

        entry = {
            "epoch": epoch,
            "iteration": optimizers[0].t,
            "elapsed_time": time.perf_counter() - started,
            "samples_per_second": speed,
            **train_mean.report("main/"),
            **test_mean.report("validation/main/"),
        }
        log.append(entry)
        say(
            f"{epoch:5d} {entry['main/loss']:12.4f} {entry['main/accuracy']:9.4f}"
            f" {entry['validation/main/loss']:11.4f}"
            f" {entry['validation/main/accuracy']:9.4f} {speed:11.0f}"
        )

    say(f"test accuracy {log[-1]['validation/main/accuracy']:.2%}")
    if comm.rank == 0:
        os.makedirs(args.out, exist_ok=True)
        path = os.path.join(args.out, "log")
        # The format of Chainer's LogReport.
        with open(path, "w", encoding="utf-8") as file:
            json.dump(log, file, indent=4)
        say(f"log written to {path}, after {log[-1]['elapsed_time']:.0f} s")
        path = os.path.join(args.out, "timeline")
        timeline.save(f"{path}.json")
        timeline.plot(f"{path}.png")
        say(f"the last minibatch's timeline is in {path}.json and {path}.png")


class Mean:
    """The mean over samples of what minibatches of any size reported."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._n = 0

    def add(self, means: dict[str, float], n: int) -> None:
        """Adds the means over ``n`` samples."""
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + n * value
        self._n += n

    def report(self, prefix: str) -> dict[str, float]:
        """Returns the means so far."""
        return {prefix + name: value / self._n for name, value in self._sums.items()}


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
    norm = not args.no_batch_normalization
    return ResNet50(image_size=args.size, batch_normalization=norm)


def make_plan(args: argparse.Namespace, model: Divisible, train: data.Images) -> Plan:
    """Says where to cut: as asked, or into stages of equally many layers."""
    if args.plan is not None:
        plan = Plan.load(args.plan)
        plan.check(model, comm.size)
        args.microbatches = plan.n_microbatches or args.microbatches
        args.schedule = plan.schedule or args.schedule
        return plan
    per_rank = 2 if args.schedule in ("interleaved", "looped_bfs", "zb_v") else 1
    n_stages = per_rank * comm.size
    if args.cuts is None or args.cuts == "auto":
        plan = Plan.uniform(len(model), n_stages)
        if args.cuts == "auto" and comm.rank == 0:
            # Of what one microbatch takes in each layer.
            n = -(-args.batchsize // args.microbatches)
            plan = partition(profile(model, train.x[:n], train.t[:n]), n_stages)
        return comm.bcast(plan)
    plan = Plan([0, *args.cuts, len(model)])
    if plan.n_stages != n_stages:
        raise ValueError(
            f"--cuts makes {plan.n_stages} stages, but {args.schedule} on {comm.size}"
            f" ranks has {n_stages}; there must be one cut less than there are stages"
        )
    return plan


def say(line: str) -> None:
    """Prints on one rank only."""
    if comm.rank == 0:
        print(line, flush=True)


class Parser(argparse.ArgumentParser):
    """Every rank finds the same errors; one prints them."""

    def _print_message(self, message, file=None):
        if comm.rank == 0:
            super()._print_message(message, file)


def cuts(text: str) -> list[int] | str:
    """Reads positions with commas between, or ``auto``."""
    return text if text == "auto" else integers(text)


def integers(text: str) -> list[int]:
    """Reads integers with commas between."""
    return [int(number) for number in text.split(",")]


def make_parser() -> argparse.ArgumentParser:
    """Describes the options."""
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=DEFAULTS, default="cnn")
    add("--dataset", choices=data.NAMES, default="digits")
    add("--epoch", type=int, default=15, help="number of epochs")
    add("--batchsize", type=int, default=64, help="samples of a minibatch")
    add("--microbatches", type=int, default=4, help="parts of a minibatch")
    add("--schedule", choices=schedules.NAMES, default="1f1b")
    add(
        "--cuts",
        type=cuts,
        help="positions to cut at, such as 7,15,26 for 4 ranks; auto: measure the"
        " layers first, for stages of equal time; default: stages of equally many"
        " layers",
    )
    add("--plan", help="file of a plan, made by divisible plan; it says all of that")
    add("--optimizer", choices=OPTIMIZERS, help="default: by model")
    add("--learning-rate", type=float, help="default: by model")
    add("--float16", action="store_true", help="train in mixed precision")
    add("--seed", type=int, default=0, help="of the weights and the order of samples")
    add("--out", default="result", help="folder for the log")
    add("--units", type=int, default=256, help="of the mlp's layers")
    add("--layers", type=int, default=4, help="of the mlp")
    add("--dropout", type=float, default=0.5, help="of vgg16; 0 for none")
    add("--no-batch-normalization", action="store_true", help="for resnet50")
    add("--size", type=int, default=32, help="pixels per side for vgg16 and resnet50")
    add("--samples", type=int, default=1000, help="of the synthetic data set")
    add(
        "--shape",
        type=integers,
        default=[3, 32, 32],
        help="of the synthetic images: channels,height,width",
    )
    return parser


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuses what cannot be trained, and fills in what depends on the model."""
    if args.optimizer is not None and args.learning_rate is None:
        parser.error("--optimizer needs a --learning-rate to go with it")
    optimizer, learning_rate = DEFAULTS[args.model]
    args.optimizer = args.optimizer or optimizer
    if args.learning_rate is None:
        args.learning_rate = learning_rate
    for name in ("epoch", "batchsize", "microbatches", "units", "layers"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be 1 at least, not {getattr(args, name)}")
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
    for module, words in needed.items():
        if importlib.util.find_spec(module) is None:
            parser.error(f"{words}: pip install 'divisible[examples]'")


if __name__ == "__main__":
    main()
