"""Equation (8) and the balance of every mapping, for the paper's two conditions.

    python -m benchmarks.heterogeneous.mappings

Nothing is measured: it is arithmetic. ``elements`` is equation (8), ``balance`` the
time of the slowest processor over that of a perfect division, in exact shares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.results import Result, command
from heterogeneous import (
    RectangularPartition,
    method_1,
    method_h,
    method_h_rev,
    rectangular_partition,
)

#: Inputs, hidden units, outputs, samples of the paper, and the abilities that it
#: assumes: clocks of 500 and 800 MHz, divided by the jobs on a processor.
SHAPE = (203, 80, 26, 1024)
CONDITIONS = {
    "A": (0.25, 0.31, 0.63, 1.0, 1.0, 0.42, 0.67, 0.63),
    "B": (0.63, 0.63, 0.63, 1.0, 0.63, 1.0, 1.0, 0.63),
}
#: Abilities that the paper's DRPM found: about 0.5 where 0.63 was assumed. They are
#: printed for B; in A those of the other processors of 500 MHz are as much smaller.
TRUE = {
    "A": (0.25, 0.25, 0.5, 1.0, 1.0, 0.33, 0.67, 0.5),
    "B": (0.49, 0.50, 0.49, 1.0, 0.52, 0.98, 1.0, 0.51),
}


def divisors(n: int) -> list[int]:
    """Returns the numbers of equal groups of so many processors."""
    return [i for i in range(1, n + 1) if n % i == 0]


def mappings(
    abilities: Sequence[float], shape: tuple[int, int, int, int] = SHAPE
) -> Iterator[tuple[str, RectangularPartition]]:
    """Yields every mapping with its name.

    Args:
        abilities: Abilities of the processors.
        shape: n, m, l and s.
    """
    n = len(abilities)
    for groups in divisors(n):
        yield f"method 1, {groups}", method_1(n, groups, *shape)
    for groups in divisors(n):
        yield f"H, {groups}", method_h(abilities, groups, *shape)
    for groups in divisors(n):
        yield f"H_rev, {groups}", method_h_rev(abilities, groups, *shape)
    yield "SRPM", rectangular_partition(abilities, *shape)
    yield "SRPM, any", rectangular_partition(abilities, *shape, order="any")


def balance(partition: RectangularPartition, abilities: Sequence[float]) -> float:
    """Returns the slowest processor's time over that of a perfect division."""
    total = sum(abilities)
    return max(
        r.width * r.height * total / abilities[r.processor]
        for r in partition.rectangles
    )


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    result = Result("heterogeneous_mappings", arguments.output)
    result.write(command(), f"n, m, l, s: {SHAPE}")
    for condition, all_abilities in CONDITIONS.items():
        for n in range(4, len(all_abilities) + 1):
            abilities = all_abilities[:n]
            result.write(
                "",
                f"condition {condition}, {n} processors",
                f"{'':14} {'elements':>9} {'balance':>8}  columns",
            )
            for name, p in mappings(abilities):
                columns = " ".join(str(list(column)) for column in p.columns)
                result.write(
                    f"{name:14} {p.communication:9.0f} {balance(p, abilities):8.2f}"
                    f"  {columns}"
                )
    result.save()


if __name__ == "__main__":
    main()
