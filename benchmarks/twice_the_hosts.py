"""Whether VGG16 is slower on 16 hosts than on 8 of them.

    python -m benchmarks.twice_the_hosts

In `paper_tables` all hosts together have the same cores, so each of 16 is half as fast
as each of 8. Here there are 16 equal hosts from the beginning. The model is cut by
`best_plan` for 8 of them and for all. The undivided step in plain Chainer and both
plans take turns on these hosts. With 16 hosts the slowest layer limits the step: more
of them can help only until it is alone on its host.

The layers' profiles are those of `paper_tables`, which are measured if they are
missing.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.common.hosts import add_hosts_arguments, keep_freed_memory, prepare
from benchmarks.common.plans import UNDIVIDED, in_turn
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.paper_tables.points import DATA, Scale
from benchmarks.paper_tables.profiles import profiles_of
from divisible import Machine, Network, best_plan

SCHEDULES = ("1f1b", "zb_h1")
#: Seconds that the run may take.
DEADLINE = 3600


def main() -> None:
    """Plans, measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--hosts", type=int, default=16, help="of which half are compared with all")
    add("--microbatches", type=int, default=20)
    add("--rounds", type=int, default=9)
    add("--data", type=Path, default=DATA, help="folder with the profiles")
    add("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()

    point = Scale().of("vgg16", arguments.hosts, arguments.microbatches)
    hosts = point.on(arguments.cpu)
    profiles = profiles_of(arguments.data, point)
    result = Result("twice_the_hosts", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"VGG16 of {point.size} x {point.size} pixels, batch {point.batch}, in"
        f" {point.microbatches} microbatches; {hosts.n} hosts with"
        f" {hosts.share:g} of a core and links of {hosts.rate} each",
        "",
    )
    plans = {}
    for n in (hosts.n // 2, hosts.n):
        plans[f"{n} hosts"] = best_plan(
            profiles,
            Machine(n, network=Network(hosts.bandwidth), speeds=hosts.share),
            batch=point.batch,
            microbatches=[point.microbatches],
            schedules=SCHEDULES,
            recompute=["never"],
        )
    seconds, _ = in_turn(
        hosts,
        point,
        plans,
        arguments.rounds,
        DEADLINE,
    )
    half, whole = plans
    result.write(f"{'':12} {'step s':>7}  speed-up")
    for name, each in seconds.items():
        result.write(
            f"{name:12} {statistics.median(each):7.2f} "
            f" {ratios(seconds[UNDIVIDED], each)}"
        )
    for name, plan in plans.items():
        result.write(f"{name}: {plan.n_stages} stages, {plan.schedule}, {plan.cuts}")
    faster = statistics.median(a / b for a, b in zip(seconds[half], seconds[whole]))
    result.write(
        "",
        f"{half} take {ratios(seconds[half], seconds[whole]).strip()} times as long as"
        f" {whole}; wanted 1 at least: {'met' if faster >= 1 else 'MISSED'}",
    )
    result.save()


if __name__ == "__main__":
    main()
