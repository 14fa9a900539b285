"""Training on hosts whose gradients travel in few bits, against float32 and ChainerMN.

    python -m benchmarks.data_parallel.training

``steps``: two networks on 2 hosts with links of 1 Gbit/s. The AlexNet-like one has
nearly all of its parameters in fully connected layers, so that its step is nearly all
exchange; in the other one convolutions have nearly all the work. Gradients are
exchanged after backward; ``during``: during it; ``late``, which is double buffering:
during the next forward and backward. ``alone`` exchanges nothing. All ways take turns,
each with a model of its own. So the same run shows the parts of a step (Figs. 5 and 6
of Oyama et al.) and its time to an accuracy (Fig. 14).

``scaling``: 1, 2 and 4 hosts of equal speed, weak and strong, against one without an
exchange (Fig. 7).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
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
from benchmarks.data_parallel.exchange import Goals

ALONE, CHAINERMN = "alone", "ChainerMN"
EIGHT_BITS = ("int8", "e4m3")
PAPER = {"exchange_dtype": "fp8", "strategy": "oyama2017", "exempt": None}
WAYS: dict[str, dict[str, Any]] = {
    ALONE: {},
    CHAINERMN: {},
    "fp32": {},
    "int8": {"exchange_dtype": "int8"},
    "e4m3": {"exchange_dtype": "e4m3"},
    "oyama2017": PAPER,
    "fp32, during": {"overlap": True},
    "int8, during": {"exchange_dtype": "int8", "overlap": True},
    "fp32, late": {"double_buffering": True},
    "int8, late": {"exchange_dtype": "int8", "double_buffering": True},
    "e4m3, late": {"exchange_dtype": "e4m3", "double_buffering": True},
    "oyama2017, late": {**PAPER, "double_buffering": True},
}
#: Ways in the part scaling.
SCALED = ("fp32", "int8", "oyama2017")
PARTS = ("encode", "wire", "sum", "decode")
#: The AlexNet-like network, the other one, and what is wanted of the first: part of a
#: step that float32's exchange takes, and times as many steps per second.
WIDE, DEEP = "AlexNet-like", "convolutions"
SHARE, FASTER, OVER_CHAINERMN = 0.8, 2.2, 0.97
#: Accuracies in percent to which the time is measured.
TARGETS = (80, 90, 95)
#: The value in `benchmarks.data_parallel.replicas`, which this process cannot import,
#: because that would start MPI.
TEST_EVERY = 5
HOSTS = (1, 2, 4)
#: Seconds that the run on some hosts may take.
DEADLINE = 900
#: Options of a quick run, in which accuracies are tested twice.
QUICK = {"networks": [WIDE], "rounds": 2 * TEST_EVERY, "batch": 8}


def train(hosts: Hosts, **job: Any) -> dict[str, Any]:
    """Trains on hosts; see `benchmarks.data_parallel.replicas.Job`."""
    return run(hosts, "benchmarks.data_parallel.replicas", job, DEADLINE)


def seconds_to(
    target: float, seconds: Sequence[float], accuracies: Sequence[float]
) -> float | None:
    """Returns the seconds of training to an accuracy; ``None`` if it is not reached.

    Args:
        target: Accuracy in percent.
        seconds: Seconds of each step.
        accuracies: Accuracies after every `TEST_EVERY` steps.
    """
    for i, accuracy in enumerate(accuracies):
        if accuracy >= target:
            return sum(seconds[: (i + 1) * TEST_EVERY])
    return None


def write_steps(result: Result, found: dict[str, Any]) -> None:
    """Writes the table of one network."""
    ways = found["ways"]
    seconds = {name: each[0] for name, each in ways.items()}
    result.write(
        f"{'':16} {'steps/s':>8}  {'times fp32':20} {'times ChainerMN':20}"
        f" ms: step  compute {' '.join(f'{part:>6}' for part in PARTS)}"
    )
    for name, (each, parts, _) in ways.items():
        median = statistics.median(each)
        over = [ratios(seconds[base], each).strip() for base in ("fp32", CHAINERMN)]
        of_parts = ""
        if parts:
            compute = median - sum(parts.values())
            of_parts = f"{1e3 * compute:8.1f} " + " ".join(
                f"{1e3 * parts[part]:6.1f}" for part in PARTS
            )
        result.write(
            f"{name:16} {1 / median:8.2f}  {over[0]:20} {over[1]:20}"
            f" {1e3 * median:8.1f} {of_parts}"
        )
    result.write(
        f"quantiles of Algorithm 1 take {1e3 * found['quantile']:.2f} ms a step"
    )


def write_times(result: Result, ways: dict[str, Any]) -> None:
    """Writes the seconds to some accuracies."""
    heads = "".join(f"{f'{target} %':>8}" for target in TARGETS)
    result.write("", f"{'seconds to':16}{heads}    best %")
    for name, (seconds, _, accuracies) in ways.items():
        if name == ALONE:
            continue
        each = [seconds_to(target, seconds, accuracies) for target in TARGETS]
        text = "".join(f"{'-' if s is None else f'{s:.1f}':>8}" for s in each)
        result.write(f"{name:16}{text}  {max(accuracies):8.2f}")


def goals_of(goals: Goals, network: str, ways: dict[str, Any]) -> None:
    """Adds the goals for a network."""
    seconds = {name: each[0] for name, each in ways.items()}
    goals.add_ratio(
        f"{network}: fp32 over ChainerMN",
        seconds[CHAINERMN],
        seconds["fp32"],
        OVER_CHAINERMN,
    )
    if network != WIDE:
        return
    shares = [1 - a / b for a, b in zip(seconds[ALONE], seconds["fp32"])]
    goals.add(
        f"{network}: part of fp32's step that is exchange",
        statistics.median(shares),
        SHARE,
    )
    for name in EIGHT_BITS:
        for late in ("", ", late"):
            goals.add_ratio(
                f"{network}: {name}{late} over fp32{late}",
                seconds[f"fp32{late}"],
                seconds[name + late],
                FASTER,
            )


def steps(
    result: Result, arguments: argparse.Namespace, network: str, goals: Goals
) -> None:
    """Trains one network on 2 hosts."""
    is_wide = network == WIDE
    rounds = arguments.rounds if is_wide else max(1, arguments.rounds // 3)
    result.progress(f"{network}: {rounds} steps of each of {len(WAYS)} ways begin")
    found = train(
        Hosts(2, arguments.cpu / 2, arguments.rate),
        network=network,
        ways=WAYS,
        rounds=rounds,
        tests=is_wide,
    )
    result.write(
        "",
        f"{network}: {found['parameters'] / 1e6:.2f} M parameters, 2 hosts with"
        f" {arguments.cpu / 2:g} of a core and links of {arguments.rate}, {rounds}"
        f" steps of each",
    )
    write_steps(result, found)
    if any(accuracies for _, _, accuracies in found["ways"].values()):
        write_times(result, found["ways"])
    goals_of(goals, network, found["ways"])


def scaling(result: Result, arguments: argparse.Namespace, network: str) -> None:
    """Trains one network on 1, 2 and 4 hosts of the same speed."""
    share = arguments.cpu / max(HOSTS)
    ways = {name: WAYS[name] for name in (ALONE, *SCALED)}
    rounds = max(1, arguments.rounds // 15)
    result.write(
        "",
        f"{network}: samples per second over those of one host alone; hosts with"
        f" {share:g} of a core; {rounds} steps of each; medians",
        f"{'':8} {'hosts':>5} {'samples of a host':>18}"
        + "".join(f"{name:>11}" for name in SCALED),
    )
    for kind in ("weak", "strong"):
        base = None
        for n in HOSTS:
            batch = arguments.batch // (n if kind == "strong" else 1)
            found = train(
                Hosts(n, share, arguments.rate),
                network=network,
                ways=ways,
                rounds=rounds,
                batch=batch,
            )["ways"]
            median = {name: statistics.median(found[name][0]) for name in ways}
            if base is None:
                base = batch / median[ALONE]
            speedups = [n * batch / median[name] / base for name in SCALED]
            text = "".join(f"{speedup:11.2f}" for speedup in speedups)
            result.write(f"{kind:8} {n:5} {batch:18}{text}")


def main() -> None:
    """Trains everything and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    # All of two cores: MPI spins in ChainerMN, which would use up a share.
    parser.set_defaults(cpu=2.0)
    add = parser.add_argument
    parts, networks = ("steps", "scaling"), (WIDE, DEEP)
    add("--parts", nargs="+", choices=parts, default=list(parts))
    add("--networks", nargs="+", choices=networks, default=list(networks))
    add("--rounds", type=int, default=120, help="steps of the AlexNet-like network")
    add("--rate", default="1gbit", help="of the links")
    add("--batch", type=int, default=32, help="samples of the part scaling")
    add("--output", type=Path, help="of the result")
    name = "data_parallel_training"
    arguments = quick.parse(parser, name, QUICK)
    prepare()
    keep_freed_memory()

    result, goals = Result(name, arguments.output), Goals()
    result.write(
        command(),
        machine("numpy", "numba", "chainer", "mpi4py", "mpich"),
        "medians of alternating steps, ratios with (min..max)",
    )
    for network in arguments.networks:
        if "steps" in arguments.parts:
            steps(result, arguments, network, goals)
    for network in arguments.networks:
        if "scaling" in arguments.parts:
            scaling(result, arguments, network)
    result.write("", *goals.lines)
    result.save()


if __name__ == "__main__":
    main()
