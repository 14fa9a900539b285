"""The e5m2 codec against ml_dtypes: elements per second on one core.

    OMP_NUM_THREADS=1 python -m benchmarks.float8

Arrays that fit the cache, as the parts of a gradient that are exchanged in turn, and
arrays that do not. Both codecs take turns in one run.

``add`` is the sum of two arrays of codes in one pass. ``steps`` is the same sum by
decoding both, adding in float32 and encoding.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

from benchmarks.common.results import (
    Result,
    alternate,
    command,
    cpu_seconds,
    machine,
    ratios,
)
from chainer_kernels import float8


def repeated(function: Callable[[], object], n: int) -> Callable[[], None]:
    """Makes one measurement long enough for the clock."""

    def run() -> None:
        for _ in range(n):
            function()

    return run


def sums(
    codes: np.ndarray, others: np.ndarray
) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Returns ways to add up codes, here and by ml_dtypes."""
    out = np.empty_like(codes)
    first, second = np.empty((2, codes.size), np.float32)
    types = ml_dtypes.float8_e5m2

    def by_steps() -> None:
        float8.decode(codes, out=first)
        float8.decode(others, out=second)
        np.add(first, second, out=first)
        float8.encode(first, out=out)

    def there() -> None:
        np.add(codes.view(types), others.view(types), out=out.view(types))

    return {
        "add": (lambda: float8.add(codes, others, out), there),
        "steps": (by_steps, there),
    }


def main() -> None:
    """Measures encode and decode in every dtype and size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, nargs="+", default=[2**16, 2**24])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("float8", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "ml_dtypes"),
        f"medians of {arguments.rounds} rounds; G elements/s, and how many times as"
        " fast as ml_dtypes",
        "",
        f"{'':<10} {'elements':>10} {'dtype':>8} {'here':>7} {'ml_dtypes':>10}  ratio",
    )
    rng = np.random.RandomState(0)
    for n in arguments.elements:
        repetitions = max(1, 2**23 // n)
        for dtype in (np.float32, np.float16):
            x = rng.standard_normal(n).astype(dtype)
            codes = float8.encode(x, 8.0)
            theirs = codes.view(ml_dtypes.float8_e5m2)
            scale, inverse = dtype(8), dtype(1 / 8)
            back = np.empty_like(x)

            def encode(
                x: np.ndarray = x,
                scale: np.generic = scale,
                scaled: np.ndarray = back,
                out: np.ndarray = theirs,
            ) -> None:
                np.multiply(x, scale, out=scaled)
                np.copyto(out, scaled, casting="unsafe")

            def decode(
                codes: np.ndarray = theirs,
                inverse: np.generic = inverse,
                out: np.ndarray = back,
            ) -> None:
                np.copyto(out, codes, casting="unsafe")
                np.multiply(out, inverse, out=out)

            actions = {
                "encode": (lambda x=x, out=codes: float8.encode(x, 8.0, out), encode),
                "decode": (
                    lambda c=codes, out=back: float8.decode(c, 1 / 8, out),
                    decode,
                ),
            }
            if dtype is np.float32:
                actions |= sums(codes, rng.permutation(codes))
            for name, (here, there) in actions.items():
                variants = {
                    "here": repeated(here, repetitions),
                    # The other one is so much slower that fewer repetitions suffice.
                    "there": repeated(there, max(1, repetitions // 8)),
                }
                for variant in variants.values():
                    variant()
                seconds = alternate(variants, arguments.rounds, cpu_seconds)
                each = {
                    "here": [s / repetitions for s in seconds["here"]],
                    "there": [s / max(1, repetitions // 8) for s in seconds["there"]],
                }
                speed = {k: n / statistics.median(v) / 1e9 for k, v in each.items()}
                result.write(
                    f"{name:<10} {n:10d} {np.dtype(dtype).name:>8}"
                    f" {speed['here']:7.2f} {speed['there']:10.3f}"
                    f" {ratios(each['there'], each['here'])}"
                )
    result.save()


if __name__ == "__main__":
    main()
