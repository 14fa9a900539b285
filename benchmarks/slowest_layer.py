"""VGG16 with the paper's cut and with ours, and what its slowest layer allows.

    python -m benchmarks.slowest_layer

No schedule can make a step shorter than its slowest layer takes for all microbatches.
The undivided step in plain Chainer, 1F1B with the paper's cut of equally many layers,
and what `best_plan` chooses for each schedule take turns on the same hosts. Before that
the layers are profiled on one of them. What the slowest layer took in a step is what
its stage computed in it (without what messages took between the phases), as far as the
profiles say that this was the layer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import quick
from benchmarks.common.hosts import add_hosts_arguments, keep_freed_memory, prepare
from benchmarks.common.plans import UNDIVIDED, in_turn
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.paper_tables.models import equal_cuts
from benchmarks.paper_tables.points import Point, Scale
from benchmarks.paper_tables.profiles import profiles_of
from divisible import Machine, Network, Plan, Profile, best_plan
from divisible.minibatch import microbatch_sizes
from divisible.planning.interpolation import interpolate

SCHEDULES = ("1f1b", "zb_h1", "zb_h2")
#: Targets on so many hosts: the speed-up over the undivided step, and the part of the
#: speed-up that the slowest layer allows.
HOSTS, SPEEDUP, ATTAINED = 8, 3.5, 0.90
#: Seconds that the run may take.
DEADLINE = 3600
#: Options of a quick run.
QUICK = {"hosts": 4, "rounds": 1}


def layer_seconds(point: Point, profiles: list[Profile]) -> np.ndarray:
    """Returns the seconds of each layer in a step, on a whole core."""
    sizes = microbatch_sizes(point.batch, point.microbatches)
    layers = [
        [layer.seconds for layer in interpolate(profiles, size).layers]
        for size in sizes
    ]
    return np.sum(layers, axis=0)


def seconds_in_step(
    layers: Sequence[float], cuts: Sequence[int], stages: Sequence[float]
) -> np.ndarray:
    """Returns the seconds of each layer in a step, from those of its stage.

    Args:
        layers: Seconds of each elsewhere, as which they share those of their stage.
        cuts: Between the stages.
        stages: Seconds that each computed in the step.
    """
    parts = np.divide(stages, np.add.reduceat(layers, cuts[:-1]))
    return np.multiply(layers, np.repeat(parts, np.diff(cuts)))


def bound(layers: np.ndarray, n_hosts: int) -> float:
    """Returns seconds that no schedule of these layers can fall below."""
    return float(max(layers.max(), layers.sum() / n_hosts))


def main() -> None:
    """Profiles, plans, measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--model", choices=["vgg16", "resnet50"], default="vgg16")
    add("--hosts", type=int, default=HOSTS)
    add("--microbatches", type=int, default=20)
    add("--image", type=int, default=32, help="pixels on a side")
    add("--rounds", type=int, default=9)
    add("--output", type=Path, help="of the result")
    arguments = quick.parse(parser, "slowest_layer", QUICK)
    prepare()
    keep_freed_memory()

    n = arguments.microbatches
    point = Scale(image=arguments.image).of(arguments.model, arguments.hosts, n)
    hosts = point.on(arguments.cpu)
    result = Result("slowest_layer", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{point.model} of {point.size} x {point.size} pixels, batch {point.batch}, in"
        f" {n} microbatches; {hosts.n} hosts with {hosts.share:g} of a core and links"
        f" of {hosts.rate} each; {arguments.rounds} rounds; median (min..max)",
        "",
    )
    with tempfile.TemporaryDirectory() as folder:
        profiles = profiles_of(Path(folder), point)
    result.progress("profiled the layers on a whole core")
    plans = {
        "equal layers, 1f1b": Plan(equal_cuts(point), n_microbatches=n, schedule="1f1b")
    }
    for schedule in SCHEDULES:
        plans[f"ours, {schedule}"] = best_plan(
            profiles,
            Machine(hosts.n, network=Network(hosts.bandwidth), speeds=hosts.share),
            batch=point.batch,
            microbatches=[n],
            schedules=[schedule],
            recompute=["never"],
        )
    plans["ours, any number"] = best_plan(
        profiles,
        Machine(hosts.n, network=Network(hosts.bandwidth), speeds=hosts.share),
        batch=point.batch,
        recompute=["never"],
    )
    result.progress(f"chose {len(plans) - 1} plans; all steps take turns now")
    seconds, stages = in_turn(hosts, point, plans, arguments.rounds, DEADLINE)
    layers = layer_seconds(point, profiles)
    undivided = statistics.median(seconds[UNDIVIDED])
    result.write(
        f"{'':18} {'step s':>7}  {'speed-up':18} slowest layer      stages",
        f"{'undivided':18} {undivided:7.2f}",
    )
    medians = {}
    for name, plan in plans.items():
        parts = np.divide(stages[name], np.array(seconds[name])[:, None])
        attained = [
            bound(seconds_in_step(layers, plan.cuts, each), hosts.n) for each in parts
        ]
        medians[name] = statistics.median(attained)
        each_stage = " ".join(f"{part:.0%}" for part in np.median(parts, axis=0))
        result.write(
            f"{name:18} {statistics.median(seconds[name]):7.2f} "
            f" {ratios(seconds[UNDIVIDED], seconds[name]):18} {medians[name]:.1%}"
            f" ({min(attained):.0%}..{max(attained):.0%})  {each_stage}"
        )
    result.write("", "slowest layer, stages: what part of the step they compute")
    for name, plan in plans.items():
        result.write(f"{name}: {plan.headline}")
    best = min(plans, key=lambda name: statistics.median(seconds[name]))
    ratio = undivided / statistics.median(seconds[best])
    h1, h2 = (seconds[f"ours, {schedule}"] for schedule in ("zb_h1", "zb_h2"))
    result.write(
        "",
        f"zb_h1 takes {ratios(h1, h2).strip()} times as long as zb_h2",
        f"fastest: {best}, {ratio:.2f} times the undivided step"
        f"{_verdict(hosts.n, ratio, SPEEDUP, '')}; {medians[best]:.1%} of what the"
        f" slowest layer allows{_verdict(hosts.n, medians[best], ATTAINED, '.0%')}",
    )
    result.save()


def _verdict(n_hosts: int, found: float, wanted: float, form: str) -> str:
    """Returns whether a target is met; it is one of a number of hosts."""
    if n_hosts != HOSTS:
        return ""
    return f", wanted {wanted:{form}}: {'met' if found >= wanted else 'MISSED'}"


if __name__ == "__main__":
    main()
