"""Errors of inner products: float16 with sums in float16 and float32, and bfloat16.

    OMP_NUM_THREADS=1 python -m benchmarks.tensor_core_accuracy

Naruse's experiment (2017, "accuracy of Tensor Cores"): activations are drawn from an
exponential distribution, weights from a normal one of mean 0 and variance 1. Their
inner products have 32 to 1,024 terms. For each number of terms two matrices are
multiplied that have 100 rows and 100 columns for the result, which gives 10,000
samples. An interval holds 99 % of the errors: 0.5 % are below it, and 0.5 % above.

Errors are differences to the product of the float32 numbers in float64, so they begin
with the rounding of the factors. A second table compares with the exact product of the
rounded factors, and so has the errors of the sums alone.

Tensor Cores are imitated: products of float16 are exact in float32, which adds them up
in the order of BLAS. A Tensor Core truncates within a block of terms, which is not
imitated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.results import Result, command, machine, new_file
from chainer_kernels.half_sums import product as product_in_float16
from chainer_kernels.loops.wire import decode_bf16, encode_bf16

LENGTHS = 32, 64, 128, 256, 512, 1024
#: Rows and columns of a product: 10,000 samples.
SIZE = 100
#: Percent of the errors in an interval.
INSIDE = 99.0

#: The way of a Tensor Core with a float32 result.
CORE = "float16, float32"

Matrices = tuple[np.ndarray, np.ndarray]


class Way(NamedTuple):
    """A way to multiply two matrices.

    Attributes:
        name: Types of the factors, of the sums, and whether the result is rounded.
        rounded: Rounds a factor; the result is float32 or float16.
        product: Multiplies the rounded factors.
    """

    name: str
    rounded: Callable[[np.ndarray], np.ndarray]
    product: Callable[[np.ndarray, np.ndarray], np.ndarray]


def in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns ``a @ b`` with sums in float32."""
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


def as_half(x: np.ndarray) -> np.ndarray:
    """Rounds to float16."""
    return x.astype(np.float16)


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounds float32 numbers to those of bfloat16."""
    codes, rounded = np.empty(x.size, np.uint16), np.empty(x.size, np.float32)
    encode_bf16(np.ascontiguousarray(x).ravel(), np.float32(1), codes)
    decode_bf16(codes, rounded, False)
    return rounded.reshape(x.shape)


WAYS = (
    Way("float32, float32", np.asarray, in_float32),
    Way("float16, float16", as_half, product_in_float16),
    Way(CORE, as_half, in_float32),
    Way("float16, float32, rounded", as_half, lambda a, b: as_half(in_float32(a, b))),
    Way("bfloat16, float32", as_bfloat16, in_float32),
    Way(
        "bfloat16, float32, rounded",
        as_bfloat16,
        lambda a, b: as_bfloat16(in_float32(a, b)),
    ),
)


def factors(length: int, seed: int = 0) -> Matrices:
    """Returns activations (100, length) and weights (length, 100), float32."""
    random = np.random.RandomState(seed)
    a = random.exponential(size=(SIZE, length))
    b = random.normal(size=(length, SIZE))
    return a.astype(np.float32), b.astype(np.float32)


class Errors(NamedTuple):
    """Errors of one way and one number of terms.

    Attributes:
        of_all: Ends of the interval of all errors.
        of_sums: Ends of the interval of the errors of the sums alone.
    """

    of_all: tuple[float, float]
    of_sums: tuple[float, float]


def errors(way: Way, length: int, seed: int = 0) -> Errors:
    """Measures a way.

    Args:
        way: How to multiply.
        length: Number of terms of the inner products.
        seed: Seed of the factors.
    """
    drawn = factors(length, seed)
    rounded = [way.rounded(each) for each in drawn]
    found = way.product(*rounded).astype(np.float64)
    return Errors(
        *(
            interval(found - np.matmul(*(x.astype(np.float64) for x in pair)))
            for pair in (drawn, rounded)
        )
    )


def interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the ends of the central interval that holds `INSIDE` percent."""
    outside = (100 - INSIDE) / 2
    low, high = np.percentile(values, [outside, 100 - outside])
    return float(low), float(high)


def main() -> None:
    """Measures every way and number of terms."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=new_file, help="where to draw the intervals")
    arguments = parser.parse_args()
    result = Result("tensor_core_accuracy", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba"),
        f"{SIZE * SIZE} inner products of exponential and normal numbers; intervals of"
        f" {INSIDE:g} % of the errors; types of factors, of sums, and 'rounded' where",
        "the sum is rounded to the type of the factors at the end",
    )
    found = {
        way.name: [errors(way, n, arguments.seed) for n in arguments.lengths]
        for way in WAYS
    }
    write(result, "all errors", arguments.lengths, found, "of_all")
    write(result, "errors of the sums alone", arguments.lengths, found, "of_sums")
    longest = arguments.lengths[-1]
    wide, narrow = (
        np.ptp(found[name][-1].of_all) for name in ("float16, float16", CORE)
    )
    result.write(
        "",
        f"with {longest} terms the errors of {CORE!r} are {wide / narrow:.0f} times"
        f" smaller than those of 'float16, float16'",
    )
    result.save()
    if arguments.plot:
        plot(arguments.plot, arguments.lengths, found)


def write(
    result: Result,
    title: str,
    lengths: list[int],
    found: dict[str, list[Errors]],
    field: str,
) -> None:
    """Writes a table, with a row for each way."""
    result.write("", title)
    result.write(f"  {'terms':<30}" + "".join(f"{n:>22}" for n in lengths))
    for name, each in found.items():
        ends = (getattr(one, field) for one in each)
        columns = "".join(f"{f'{low:+.2g} .. {high:+.2g}':>22}" for low, high in ends)
        result.write(f"  {name:<30}{columns}")


def plot(path: Path, lengths: list[int], found: dict[str, list[Errors]]) -> None:
    """Draws the intervals, and the halves of their widths, over the number of terms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    both, widths = figure.subplots(1, 2)
    for i, (name, each) in enumerate(found.items()):
        low, high = np.array([one.of_all for one in each]).T
        both.plot(lengths, low, color=f"C{i}", marker=".")
        both.plot(lengths, high, color=f"C{i}", marker=".", label=name)
        widths.plot(lengths, (high - low) / 2, color=f"C{i}", marker=".", label=name)
    figure.suptitle(f"{SIZE * SIZE} inner products: types of factors, and of sums")
    both.set_title(f"interval of {INSIDE:g} % of the errors")
    widths.set_title("half its width")
    widths.set_yscale("log")
    for axes in both, widths:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("terms of an inner product")
        axes.grid(alpha=0.3)
    both.set_ylabel("error")
    handles, names = widths.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
