"""How often steps are timed, and about how long that takes. No MPI here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.paper_tables.arithmetic import OFF
from benchmarks.paper_tables.points import BATCH, EQUAL, FIG4, OURS, SERIAL, Point

#: The sizes of microbatch at which layers are profiled, as parts of the minibatch, and
#: those of a quick run.
PROFILED, PROFILED_QUICKLY = (1, 5, 20, 80), (5, 20)

#: The timed steps of a sample take SHORT seconds together, unless they are MANY. They
#: are STEPS at least, unless they take LONG seconds. (On 16 hosts a step differs by 5%
#: from the next.)
SHORT, MANY, STEPS, LONG = 15.0, 15, 3, 60.0
#: Core seconds of an undivided step with the paper's minibatch, for each square of a
#: layer's width or, with images, for 32 x 32 pixels. The second number is of a step
#: with kernels off.
CORE_SECONDS = {
    "mlp": (2.0e-6, 2.0e-6),
    "vgg16": (2.3, 3.5),
    "resnet50": (15.0, 20.0),
}
#: How much longer than by equation (2) a step takes in which the slowest of stages
#: with equally many layers sets the pace, and the same of stages that `best_plan` cuts.
#: Fig. 4 sends blocking messages besides.
EQUAL_COST = {"mlp": 1.1, "vgg16": 1.7, "resnet50": 1.6}
OURS_COST, FIG4_COST = 1.3, 1.2
#: Core seconds in which a rank starts, and seconds in which hosts come up and go down.
RANK_SECONDS, HOSTS_SECONDS = 3.0, 2.0
#: Steps in which a profile of the layers is measured, and how often it is.
PROFILE_STEPS, PROFILES = 4, 3


def is_enough(seconds: Sequence[float], quick: bool) -> bool:
    """Returns whether a sample has enough timed steps.

    Args:
        seconds: Seconds of each timed step so far.
        quick: Whether one is enough.
    """
    if quick:
        return len(seconds) > 0
    total = sum(seconds)
    is_short = total < SHORT and len(seconds) < MANY
    return not (is_short or (total < LONG and len(seconds) < STEPS))


def step_seconds(point: Point, cpu: float) -> float:
    """Estimates the seconds of a step: equation (2) on the hosts' shares of a core.

    Args:
        point: Point whose step to estimate.
        cpu: Share of all hosts together, in cores.
    """
    core_seconds = CORE_SECONDS[point.model][point.kernels == OFF]
    seconds = core_seconds * point.batch / BATCH[point.model]
    seconds *= (point.size**2) if point.model == "mlp" else (point.size / 32) ** 2
    d, m = point.hosts, point.microbatches
    share = point.on(cpu).share
    if point.schedule == SERIAL:
        return seconds / share
    seconds *= EQUAL_COST[point.model] if point.cut == EQUAL else OURS_COST
    seconds *= FIG4_COST if point.schedule == FIG4 else 1.0
    return seconds / (share * d) * (m + d - 1) / m


def profile_seconds(point: Point, quick: bool) -> float:
    """Estimates the seconds of all profiles of a point's model, on a whole core."""
    parts = PROFILED_QUICKLY if quick else PROFILED
    steps = PROFILE_STEPS * (1 if quick else PROFILES)
    whole = step_seconds(replace(point.serial, hosts=1), 1.0)
    starts = (RANK_SECONDS + HOSTS_SECONDS) * len(parts)
    return starts + steps * whole * sum(1 / part for part in parts)


def seconds_of(
    entries: Iterable[tuple[Point, int]], cpu: float, quick: bool
) -> list[float]:
    """Estimates the seconds of each of several samples, one after the other.

    Args:
        entries: Points and rounds, in their order.
        cpu: Share of all hosts together, in cores.
        quick: Whether a sample has one timed step.
    """
    found = []
    groups: set[tuple] = set()
    points: set[Point] = set()
    profiled: set[Point] = set()
    for point, _ in entries:
        one = step_seconds(point, cpu)
        steps = (n for n in itertools.count() if is_enough([one] * n, quick))
        seconds = one * next(steps)
        if point not in points and not quick:
            # A step to get memory.
            seconds += one
        if point.group not in groups:
            share = point.on(cpu).share
            seconds += RANK_SECONDS / share + HOSTS_SECONDS
        model = point.serial.on_any_hosts
        if point.cut == OURS and model not in profiled:
            seconds += profile_seconds(point, quick)
            profiled.add(model)
        points.add(point)
        groups.add(point.group)
        found.append(seconds)
    return found


def seconds_left(done: float, left: float, passed: float) -> float:
    """Estimates the remaining seconds of a run from those that have passed.

    Args:
        done: Estimated seconds of the samples that were measured.
        left: Estimated seconds of those that were not.
        passed: Seconds that the measured samples took.
    """
    return left * passed / done if done else left
