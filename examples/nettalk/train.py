"""Trains NETtalk, which reads English aloud, on processors of unequal ability.

    python examples/nettalk/train.py
    mpiexec -n 4 python examples/nettalk/train.py --abilities 1,1,2,4
    mpiexec -n 4 python examples/nettalk/train.py --every 20

Each processor has a rectangle of the work: some of the samples, and some of the hidden
units. Abilities determine the rectangles; with --every, they are measured while the
network learns, and the rectangles follow. The network learns the same with any
rectangles.

All samples make one update. The training ends when the error is below a threshold. The
error is half the squared difference of the 26 outputs, averaged over the samples. The
optimizer sgd is plain descent, equations (5) and (6) of Ozawa, Sugaya and Aso,
Parallelizing of a Back Propagation in Heterogeneous Environment Using a Rectangular
Partitioning Mapping Method, 2005; adam needs fewer iterations.
"""

from __future__ import annotations

import argparse
import time

import chainer
import data
from mpi4py import MPI

from heterogeneous import Check, RectangularMLP, Remapper, rectangular_partition
from pipeline import abort_on_error

OPTIMIZERS = {
    "adam": lambda: chainer.optimizers.Adam(0.01),
    "sgd": lambda: chainer.optimizers.SGD(3),
}

comm = MPI.COMM_WORLD


def main() -> None:
    """Trains until the error is below the threshold."""
    abort_on_error()
    args = parse_arguments()
    x, t = data.nettalk(args.samples, args.seed)
    sizes = x.shape[1], args.units, t.shape[1]
    abilities = args.abilities or [1.0] * comm.size
    partition = rectangular_partition(abilities, *sizes, len(x))
    mlp = RectangularMLP(*sizes, comm, partition, seed=args.seed)
    optimizer = OPTIMIZERS[args.optimizer]().setup(mlp)
    say(partition)
    # Without checks the partition stays.
    every = args.every or args.iterations + 1
    remapper = Remapper(mlp, optimizer, abilities=args.abilities, every=every)

    start = time.perf_counter()
    for iteration in range(1, args.iterations + 1):
        error = remapper.step(x, t)["loss"]
        is_over = error < args.threshold
        if iteration % args.report == 0 or is_over:
            say(f"iteration {iteration:4}: error {error:.4f}")
        if iteration % every == 0:
            say(f"iteration {iteration:4}: {outcome(remapper.history[-1])}")
        if is_over:
            break
    seconds = time.perf_counter() - start
    right = ((mlp.predict(x) > 0.5) == (t > 0.5)).all(axis=1).mean()
    say(f"{right:.1%} of letters have all outputs right, after {seconds:.1f} s")


def outcome(check: Check) -> str:
    """Returns a text of a check's results and action."""
    action = {
        "whole": "everything is mapped again",
        "line": "the lines between rectangles move",
        None: "nothing moves",
    }[check.action]
    abilities = " ".join(f"{ability:.2f}" for ability in check.abilities)
    return (
        f"shortest by longest time {check.ratio:.2f}, {action}; abilities {abilities}"
    )


def say(message: object) -> None:
    """Prints a message on rank 0."""
    if comm.rank == 0:
        print(message, flush=True)


def numbers(text: str) -> list[float]:
    """Reads abilities such as 1,1,2.5."""
    return [float(number) for number in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--abilities", type=numbers, help="of ranks, such as 1,1,2; default: equal")
    add("--every", type=int, default=0, help="iterations between checks; 0: none")
    add("--optimizer", choices=OPTIMIZERS, default="adam")
    add("--threshold", type=float, default=0.1, help="error to stop at")
    add("--iterations", type=int, default=2000, help="most iterations")
    add("--report", type=int, default=100, help="iterations between two lines")
    add("--samples", type=int, default=1024, help="letters to learn from")
    add("--units", type=int, default=80, help="hidden units")
    add("--seed", type=int, default=0, help="seed of samples and weights")
    return parser.parse_args()


if __name__ == "__main__":
    main()
