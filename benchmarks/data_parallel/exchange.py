"""The mean of an array over hosts, by wire dtype, against MPI_Allreduce.

    python -m benchmarks.data_parallel.exchange

``coding``: elements per second that one core encodes and decodes.

``sizes``: arrays of several sizes on 2 and 4 hosts with links of 1 Gbit/s (Fig. 3 of
Oyama et al.). MPI_Allreduce computes the sum in float32, the others compute the mean.

``hosts``: one size on 1, 2, 4 and 8 hosts (Fig. 4).

``levels``: 2 hosts with 2 ranks each: added up on the hosts first, or not.

``unlimited``: without a limit, and from how many elements on fewer bits pay. The
emulated links let bursts of 256 kB pass, so that only these say something about small
arrays.

All ways take turns within one run on the same hosts. Before each the time of a message
between two hosts shows that the link is as fast as it is said to be.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import quick
from benchmarks.common.hosts import (
    Hosts,
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.data_parallel.coding import speeds

MEBI = 2**20
MPI_WAY = "MPI fp32"
WAYS: dict[str, Any] = {
    MPI_WAY: None,
    **{
        name: {"exchange_dtype": name}
        for name in ("fp32", "fp16", "bf16", "e4m3", "int8")
    },
    "oyama2017": {"exchange_dtype": "fp8", "strategy": "oyama2017"},
}
EIGHT_BITS = ("int8", "e4m3")
PARTS = ("coding", "sizes", "hosts", "levels", "unlimited")
SMALL = [2**n for n in range(12, 23, 2)]
#: Wanted speeds: relative to MPI_Allreduce, and to our own fp32.
OVER_MPI, OVER_FP32, FP32_OVER_MPI, FP16_OVER_FP32 = 3.6, 3.3, 1.0, 1.8
TWO_LEVELS, NOT_SLOWER = 1.4, 1.0
#: Elements per second.
CODING = 2e9
#: Elements of the messages that are coded: of a part of a chunk, and of a whole array.
CODED = (2**19, 2**23)
#: Part of a link's rate that a message reaches, if the link is what limits it.
LINK_SHARE = (0.7, 1.1)
#: Seconds that the run on some hosts may take.
DEADLINE = 900
#: Options of a quick run.
QUICK = {"hosts": [2], "sizes": [0.25, 1.0], "size": 1.0, "rounds": 1}


class Table:
    """Measures on hosts, and writes the results.

    Args:
        result: Result to write to.
        arguments: Arguments of the command.
    """

    def __init__(self, result: Result, arguments: argparse.Namespace) -> None:
        self._result, self._arguments = result, arguments

    def measure(
        self, n_hosts: int, sizes: Sequence[int], rate: str | None, **job: Any
    ) -> dict[str, Any]:
        """Measures on some hosts.

        Args:
            n_hosts: Number of hosts.
            sizes: Elements of the arrays.
            rate: Rate of the links.
            **job: Fields of `benchmarks.data_parallel.turns.Job`.
        """
        job.setdefault("ways", WAYS)
        rounds = [self._rounds(n) for n in sizes]
        ranks = job.get("ranks", 1)
        hosts = Hosts(n_hosts, self._arguments.cpu / n_hosts, rate, ranks=ranks)
        job |= {"sizes": list(sizes), "rounds": rounds}
        self._result.progress(f"{n_hosts} hosts begin, {len(sizes)} sizes of arrays")
        found = run(hosts, "benchmarks.data_parallel.turns", job, DEADLINE)
        each = f", {ranks} ranks each" if ranks > 1 else ""
        self._result.write("", f"{n_hosts} hosts{each}, links of {rate or 'any rate'}")
        if found["message"] is not None and rate is not None:
            n_bytes = 16 * MEBI
            share = n_bytes / found["message"] / hosts.bandwidth
            right = LINK_SHARE[0] <= share <= LINK_SHARE[1]
            verdict = "" if right else "; WRONG: something else limits it"
            self._result.write(
                f"a message of 16 MiB takes {1e3 * found['message']:.0f} ms,"
                f" {share:.0%} of the rate{verdict}"
            )
        return found

    def write(self, found: dict[str, Any], base: str = "fp32") -> None:
        """Writes a table of the measurements."""
        self._result.write(
            f"{'elements':>9}  {'way':16} {'ms':>7}  {MPI_WAY + ' / this':20}"
            f" {base + ' / this':20} MB sent  encode  wire   sum  decode ms"
        )
        for elements, seconds, sent, parts in found["sizes"]:
            for name, each in seconds.items():
                over = [
                    ratios(seconds[other], each).strip() if other in seconds else ""
                    for other in (MPI_WAY, base)
                ]
                of_parts = " ".join(
                    f"{1e3 * parts[name].get(part, 0):6.1f}"
                    for part in ("encode", "wire", "sum", "decode")
                )
                self._result.write(
                    f"{_text(elements):>9}  {name:16} {1e3 * _median(each):7.1f} "
                    f" {over[0]:20} {over[1]:20} {sent[name] / 1e6:7.1f} {of_parts}"
                )

    def _rounds(self, n: int) -> int:
        """Returns more rounds for smaller arrays, which are sooner disturbed."""
        rounds = self._arguments.rounds
        return rounds if n > 8 * MEBI else 2 * rounds if n > MEBI else 4 * rounds


def _text(elements: int) -> str:
    return (
        f"{elements / MEBI:g} Mi" if elements >= MEBI / 4 else f"{elements / 1024:g} Ki"
    )


_median = statistics.median


class Goals:
    """Lines of the goals, and whether they are met."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, what: str, value: float, wanted: float, digits: int = 2) -> None:
        """Adds a value that should be at least the goal."""
        verdict = "met" if value >= wanted else "MISSED"
        self.lines.append(f"{what}: {value:.{digits}f}, wanted {wanted:g}: {verdict}")

    def add_ratio(
        self, what: str, above: Sequence[float], below: Sequence[float], wanted: float
    ) -> None:
        """Adds the median of the ratios of pairs."""
        self.add(what, _median([a / b for a, b in zip(above, below)]), wanted)


def goals_of_sizes(goals: Goals, n_hosts: int, sizes: Iterable[Any]) -> None:
    """Adds the goals for large arrays."""
    for elements, seconds, _, _ in sizes:
        if elements < 8 * MEBI:
            continue
        where = f"{n_hosts} hosts, {_text(elements)}"
        mpi, fp32 = seconds[MPI_WAY], seconds["fp32"]
        for name in EIGHT_BITS:
            goals.add_ratio(f"{where}: {name} over MPI", mpi, seconds[name], OVER_MPI)
            goals.add_ratio(
                f"{where}: {name} over fp32", fp32, seconds[name], OVER_FP32
            )
        goals.add_ratio(f"{where}: fp32 over MPI", mpi, fp32, FP32_OVER_MPI)
        goals.add_ratio(
            f"{where}: fp16 over fp32", fp32, seconds["fp16"], FP16_OVER_FP32
        )


def coding(result: Result, rounds: int, goals: Goals) -> None:
    """Measures encoding and decoding."""
    result.write("", "coding: G elements/s on one core, scales of blocks included")
    result.write(f"{'elements':>9}  {'wire dtype':12} {'encode':>7} {'decode':>7}")
    for n in CODED:
        for name, each in speeds(n, 2 * rounds).items():
            encode, decode = (speed / 1e9 for speed in each)
            result.write(f"{_text(n):>9}  {name:12} {encode:7.2f} {decode:7.2f}")
            if n == CODED[0] and name in EIGHT_BITS:
                slower = min(encode, decode)
                goals.add(f"coding {name}, G elements/s", slower, CODING / 1e9)


def levels(table: Table, result: Result, n: int, goals: Goals) -> None:
    """Measures 2 hosts with 2 ranks each."""
    ways = {MPI_WAY: None}
    for name in ("fp32", *EIGHT_BITS):
        for text, size in (("2 levels", 2), ("1 level", 1)):
            ways[f"{name}, {text}"] = {"exchange_dtype": name, "local_size": size}
    found = table.measure(2, [n], "1gbit", ways=ways, ranks=2)
    table.write(found, base="fp32, 1 level")
    ((_, seconds, sent, _),) = found["sizes"]
    for name in ("fp32", *EIGHT_BITS):
        one, two = f"{name}, 1 level", f"{name}, 2 levels"
        wanted = TWO_LEVELS if name == "fp32" else NOT_SLOWER
        goals.add_ratio(f"{name}: 2 levels over 1", seconds[one], seconds[two], wanted)
        result.write(
            f"{name}: with 2 levels {sent[two] / sent[one]:.2f} of the bytes leave a"
            f" host"
        )


def unlimited(table: Table, result: Result, sizes: list[int]) -> None:
    """Measures links without a limit, and small arrays."""
    dtypes = ("fp16", *EIGHT_BITS)
    found = table.measure(2, [*SMALL, *sizes], None, break_even=dtypes)
    table.write(found)
    for name, elements in found["break_even"].items():
        where = "for none that is tried" if elements is None else f"from {elements} on"
        result.write(f"measure_break_even: {name} is faster than fp32 {where}")
    result.write(
        f"measure_break_even took {found['break_even_seconds']:.1f} s for all of them"
    )


def main() -> None:
    """Measures all parts and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    # All of two cores: MPI_Allreduce spins while it waits, which would use up a share.
    parser.set_defaults(cpu=2.0)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--hosts", type=int, nargs="+", default=[2, 4], help="of the part sizes")
    mebi = [0.25, 1, 8, 32]
    add("--sizes", type=float, nargs="+", default=mebi, help="in Mi elements")
    add("--size", type=float, default=8, help="of the other parts, in Mi elements")
    add("--rounds", type=int, default=5, help="of the largest arrays")
    add("--output", type=Path, help="of the result")
    name = "data_parallel_exchange"
    arguments = quick.parse(parser, name, QUICK)
    prepare()
    keep_freed_memory()

    result, goals = Result(name, arguments.output), Goals()
    result.write(
        command(),
        machine("numpy", "numba", "mpi4py", "mpich"),
        f"hosts with equal shares of {arguments.cpu:g} cores; {arguments.rounds} rounds"
        f" of more than 8 Mi elements, 2 and 4 times as many of fewer; medians, ratios"
        f" with (min..max)",
    )
    table = Table(result, arguments)
    sizes = [int(n * MEBI) for n in arguments.sizes]
    size = int(arguments.size * MEBI)
    if "coding" in arguments.parts:
        coding(result, arguments.rounds, goals)
    if "sizes" in arguments.parts:
        for n_hosts in arguments.hosts:
            found = table.measure(n_hosts, sizes, "1gbit")
            table.write(found)
            goals_of_sizes(goals, n_hosts, found["sizes"])
    if "hosts" in arguments.parts:
        for n_hosts in (1, 2, 4, 8):
            table.write(table.measure(n_hosts, [size], "1gbit"))
    if "levels" in arguments.parts:
        levels(table, result, size, goals)
    if "unlimited" in arguments.parts:
        unlimited(table, result, [size])
    result.write("", *goals.lines)
    result.save()


if __name__ == "__main__":
    main()
