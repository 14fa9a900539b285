"""The commands ``divisible simulate`` and ``divisible timeline``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from divisible.communication.wire import WIRE
from divisible.planning.interpolation import sort_profiles
from divisible.planning.plan import Plan
from divisible.planning.plan_simulation import (
    conditions_of,
    predicted_step,
    simulate_plan,
)
from divisible.planning.profile import Profile
from divisible.planning.retained_arrays import HOLD_DTYPES
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.records import shown
from divisible.schedules.comparison import CAUSES, Comparison
from divisible.schedules.events import MOVE, OTHER
from divisible.schedules.lower_bound import above
from divisible.schedules.recomputation import RECOMPUTATIONS
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline
from pipeline.command_line import console, options

# Seconds that differ by less than this share were only added in another order.
_ROUNDING = 1e-6


@click.command("simulate")
@click.argument("plan", type=options.Loaded(Plan.load))
@options.profiles(required=False)
@options.machine
@options.batch("as in the plan")
@click.option(
    "--microbatches",
    "n_microbatches",
    type=options.NUMBER,
    help="Number of microbatches instead of the plan's.",
)
@click.option(
    "--schedule",
    type=options.NamedSchedule(),
    metavar="SCHEDULE",
    help="Schedule instead of the plan's, a name or a file, as for divisible schedule.",
)
@click.option(
    "--recompute",
    type=click.Choice(RECOMPUTATIONS),
    help="Recomputation instead of the plan's.",
)
@click.option(
    "--weight-groups",
    type=options.NUMBER,
    help="Number of microbatches whose weight gradients are one product instead of the"
    " plan's.",
)
@click.option(
    "--hold-dtype",
    type=click.Choice(HOLD_DTYPES),
    help="Dtype in which activations wait for their backward instead of the plan's.",
)
@click.option(
    "--exchange-dtype",
    type=click.Choice(list(WIRE)),
    help="Dtype between replicas instead of the plan's.",
)
@click.option(
    "--minibatches",
    "n_minibatches",
    type=options.NUMBER,
    default=1,
    help="Number of minibatches, which follow each other without a wait of all ranks."
    "  [default: 1]",
)
@click.option("-o", "--output", type=click.Path(), help="Save the timeline (.json).")
@options.plot
@options.speaking
def simulate_command(
    plan, profiles, batch, links, speeds, disk, n_minibatches, output, plot, **changes
) -> None:
    """Predicts minibatches of a plan: time, bubble and memory of each rank.

    The machine, minibatch and profiles are those of the plan, unless you give others.
    "In flight" is the largest number of microbatches that a rank holds between forward
    and backward. If the rank has n stages, each counts for an n-th of a microbatch.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    own = changes.pop("schedule") if _has_file(changes) else None
    if own is not None and "n_microbatches" in changes:
        raise click.UsageError(
            f"--microbatches: the schedule of the file has {own.n_microbatches}. Leave"
            f" --microbatches out"
        )
    if "exchange_dtype" in changes and plan.replicas == 1:
        raise click.UsageError(
            "--exchange-dtype: the plan has no replicas. Leave it out, or make a plan"
            " with divisible plan --replicas"
        )
    if "recompute" in changes:
        plan = replace(plan, recomputed=())
    profiles = sort_profiles(profiles or profiles_of(plan))
    made_for, promised = plan.conditions, plan.step_seconds
    # A number that the plan leaves open does not change the plan.
    changed = [name for name in changes if getattr(plan, name) is not None]
    plan = replace(plan, step_seconds=None, bubble=None, bound=None, **changes)
    if own is None:
        _check_complete(plan)
    else:
        changed.append("schedule")
        plan = replace(plan, n_microbatches=own.n_microbatches, schedule=own.name)
    conditions = conditions_of(plan, profiles)
    machine = conditions.machine
    given = {
        "speeds": speeds,
        "disk": disk,
        "network": replace(machine.network, **links) if links else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    machine = replace(machine, ranks=plan.n_ranks, **given)
    plan = replace(plan, conditions=conditions.changed(batch, machine))
    console.say_wrapped(plan.headline)
    changed += ["batch"] * (batch is not None) + list(given)
    _say_conditions(plan, made_for is not None, changed)
    timeline = simulate_plan(plan, profiles, n_minibatches=n_minibatches, schedule=own)
    print_timeline(timeline)
    is_same = not changed and n_minibatches == 1
    if made_for is not None and promised is not None and is_same:
        seconds = predicted_step(timeline, plan, profiles)
        if made_for.overlap_minibatches:
            console.say(f"each of many that overlap adds {format_seconds(seconds)}")
        _say_difference(promised, seconds)
    if output is not None:
        timeline.save(output)
        console.say(f"written to {output}")
    draw(timeline, plot)


def _has_file(changes: Mapping[str, Any]) -> bool:
    return isinstance(changes.get("schedule"), Schedule)


def profiles_of(plan: Plan) -> list[Profile]:
    """Loads the profiles named in a plan.

    Raises:
        ClickException: If the plan names no profiles, or one cannot be read.
    """
    names = () if plan.conditions is None else plan.conditions.profiles
    if not names:
        raise click.UsageError(
            "the plan does not name its profiles: give them after the plan"
        )
    found = []
    for name in names:
        # A device, for example, might be read for ever.
        if not os.path.isfile(name):
            raise click.UsageError(
                f"the plan was made from {shown(name)}, which is no file here: give"
                f" the profiles after the plan"
            )
        found.append(Profile.load(name))
    return found


def _check_complete(plan: Plan) -> None:
    """Refuses a plan without a number of microbatches or a schedule.

    Raises:
        UsageError: With the missing option.
    """
    if plan.n_microbatches is None:
        raise click.UsageError(
            "the plan does not say how many microbatches a minibatch has: give"
            " --microbatches"
        )
    if plan.schedule is None:
        raise click.UsageError("the plan does not name a schedule: give --schedule")


def _say_conditions(plan: Plan, are_known: bool, changed: Sequence[str]) -> None:
    """Prints the conditions of a simulation, and whether they are the plan's."""
    conditions = plan.conditions
    batch = count(plan.batch, "sample")
    if not are_known:
        whose = "the plan does not say what it was made for; simulated"
    elif changed:
        whose = f"unlike what the plan was made for ({', '.join(changed)})"
    else:
        whose = "as the plan was made for"
    console.say_wrapped(f"{whose}: a minibatch of {batch} on {conditions.machine}")


def _say_difference(promised: float, seconds: float) -> None:
    """Prints a line if a simulation differs from the prediction in the plan."""
    if abs(seconds / promised - 1) > _ROUNDING:
        console.say(
            f"the plan has {format_seconds(promised)} a step: it was made from other"
            f" profiles than these"
        )


@click.command("timeline")
@click.argument(
    "timeline", metavar="FILE", type=options.Loaded(Timeline.load, "*.json")
)
@click.option(
    "--against",
    "predicted",
    type=options.Loaded(Timeline.load),
    metavar="PREDICTED",
    help="Compare with this timeline: show where time was lost, and draw both.",
)
@options.plot
@options.speaking
def timeline_command(timeline, predicted, plot) -> None:
    """Shows a saved timeline: what every rank did, and for how long.

    FILE comes from Timeline.save, measured (Pipeline.timeline) or predicted. If it is a
    folder, the newest timeline in it is shown. You can also open it in
    chrome://tracing. PREDICTED comes from "divisible simulate --output", for the same
    plan.
    """
    print_timeline(timeline)
    if predicted is None:
        draw(timeline, plot)
        return
    comparison = timeline.compare(predicted)
    _print_comparison(comparison)
    draw(comparison, plot)


def draw(timeline: Timeline | Comparison, path: str | None) -> None:
    """Draws a timeline or a comparison to a file, if there is a path."""
    if path is not None:
        timeline.plot(path)
        console.say(f"drawn to {path}")


def print_timeline(timeline: Timeline) -> None:
    """Prints a timeline in a line, and each of its ranks in another one."""
    bubble = timeline.bubble.mean() if len(timeline) else 0.0
    console.say_wrapped(
        f"{timeline.name}: {format_seconds(timeline.makespan)}, bubble {bubble:.1%}"
    )
    if timeline.gap is not None:
        console.say(f"{above(timeline.gap)}, {format_seconds(timeline.bound)}")
    if timeline.n_minibatches > 1:
        console.say(
            f"the last minibatch adds {format_seconds(timeline.minibatch_seconds)}"
        )
    memory = timeline.peak_memory
    columns = ["rank", "computes", "bubble", "in flight"]
    rows = [
        [str(rank), format_seconds(busy), f"{bubble:.1%}", f"{peak:.4g}"]
        for rank, (busy, bubble, peak) in enumerate(
            zip(timeline.busy, timeline.bubble, timeline.peak_in_flight)
        )
    ]
    if timeline.updating.any():
        columns.append("updates")
        for row, value in zip(rows, timeline.updating.tolist()):
            row.append(format_seconds(value))
    is_other = timeline.category == OTHER
    if is_other.any():
        # Other time, such as the exchange of gradients, has a column if there is some.
        seconds = np.bincount(
            timeline.rank, is_other * (timeline.end - timeline.start), timeline.n_ranks
        )
        columns.append("other")
        for row, value in zip(rows, seconds.tolist()):
            row.append(format_seconds(value))
    if memory is not None:
        columns.append("memory")
        for row, size in zip(rows, memory):
            row.append(format_bytes(size))
    console.print_table(columns, rows)
    _say_moves(timeline)


def _print_comparison(comparison: Comparison) -> None:
    predicted = comparison.predicted.makespan
    lost = comparison.measured.makespan - predicted
    console.say_wrapped(
        f"predicted for {comparison.predicted.name}: {format_seconds(predicted)}; lost"
        f" {_signed(lost)}, of which"
    )
    console.print_table(
        ["rank", *CAUSES],
        [
            [str(rank), *map(_signed, row)]
            for rank, row in enumerate(comparison.lost.tolist())
        ],
    )
    console.print_table(
        ["stage", "rank", "computes", "predicted", "times"],
        [
            [
                str(stage),
                str(rank),
                format_seconds(measured),
                format_seconds(predicted),
                f"{measured / predicted:.2f}" if predicted else "",
            ]
            for stage, rank, measured, predicted in comparison.stages
        ],
    )


def _signed(seconds: float) -> str:
    # Rounded, because a difference of nothing must not have a sign.
    seconds = round(seconds, 9)
    sign = "-" if seconds < 0 else "+" if seconds > 0 else ""
    return sign + format_seconds(abs(seconds))


def _say_moves(timeline: Timeline) -> None:
    """Prints the layers that moved after the minibatch, and the seconds it took."""
    seconds: dict[str, float] = {}
    for i in np.flatnonzero(timeline.category == OTHER).tolist():
        event = timeline[i]
        words = str(event.what)
        if words.startswith(MOVE):
            took = event.end - event.start
            seconds[words] = max(took, seconds.get(words, 0.0))
    for words, longest in seconds.items():
        console.say(f"{words}, {format_seconds(longest)}")
