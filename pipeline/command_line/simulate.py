"""The commands ``divisible simulate`` and ``divisible timeline``."""

from __future__ import annotations

from dataclasses import replace

import click
import numpy as np

from divisible.communication.wire import WIRE
from divisible.planning.plan import Plan
from divisible.planning.prediction import predict
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.schedules.catalogue import NAMES
from divisible.schedules.comparison import CAUSES, Comparison
from divisible.schedules.events import MOVE, OTHER
from divisible.schedules.recomputation import CHECKPOINTS
from divisible.schedules.timeline import Timeline
from pipeline.command_line import console, options


@click.command("simulate")
@click.argument("plan", type=options.Loaded(Plan.load))
@options.profiles
@options.machine
@options.batch
@click.option(
    "--microbatches", "n_microbatches", type=options.NUMBER, help="Not the plan's."
)
@click.option("--schedule", type=click.Choice(NAMES), help="Another than the plan's.")
@click.option(
    "--checkpoint", type=click.Choice(CHECKPOINTS), help="Not that of the plan."
)
@click.option(
    "--wire-dtype", type=click.Choice(list(WIRE)), help="Of replicas; not the plan's."
)
@click.option("-o", "--output", type=click.Path(), help="Keep the timeline (.json).")
@options.plot
@options.speaking
def simulate_command(
    plan, profiles, batch, network, speeds, disk, output, plot, **changes
) -> None:
    """Predicts one minibatch of a plan: time, bubble and memory of each rank.

    A plan does not say of how many samples a minibatch is; --batch does.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    if "wire_dtype" in changes and plan.replicas == 1:
        raise click.UsageError("--wire-dtype: the plan has no replicas")
    plan = replace(plan, step_seconds=None, **changes)
    console.say(plan.headline)
    timeline = predict_minibatch(plan, profiles, batch, network, speeds, disk)
    _print_timeline(timeline)
    if output is not None:
        timeline.save(output)
        console.say(f"written to {output}")
    draw(timeline, plot)


@click.command("timeline")
@click.argument("timeline", metavar="FILE", type=options.Loaded(Timeline.load))
@click.option(
    "--against",
    "predicted",
    type=options.Loaded(Timeline.load),
    metavar="PREDICTED",
    help="Say where time was lost against this timeline, and draw both.",
)
@options.plot
@options.speaking
def timeline_command(timeline, predicted, plot) -> None:
    """Shows a timeline that was saved: what every rank did, and for how long.

    FILE comes from Timeline.save, measured (Pipeline.timeline) or predicted. It can
    be opened in chrome://tracing as well. PREDICTED comes from "divisible simulate
    --output", of the same plan.
    """
    _print_timeline(timeline)
    if predicted is None:
        draw(timeline, plot)
        return
    comparison = timeline.compare(predicted)
    _print_comparison(comparison)
    draw(comparison, plot)


def predict_minibatch(plan, profiles, batch, network, speeds, disk) -> Timeline:
    """Predicts a minibatch, and says of how many samples it is."""
    if batch is None:
        batch = max(profile.n_samples for profile in profiles)
    console.say(f"simulated with a minibatch of {count(batch, 'sample')}")
    return predict(
        plan, profiles, batch=batch, network=network, speeds=speeds, disk=disk
    )


def draw(timeline: Timeline | Comparison, path: str | None) -> None:
    """Draws a timeline or two, if there is a file to draw them to."""
    if path is not None:
        timeline.plot(path)
        console.say(f"drawn to {path}")


def _print_timeline(timeline: Timeline) -> None:
    console.say(f"{timeline.name}: {format_seconds(timeline.makespan)}")
    memory = timeline.peak_memory
    columns = ["rank", "computes", "bubble", "in flight"]
    rows = [
        [str(rank), format_seconds(busy), f"{bubble:.1%}", str(peak)]
        for rank, (busy, bubble, peak) in enumerate(
            zip(timeline.busy, timeline.bubble, timeline.peak_in_flight)
        )
    ]
    is_other = timeline.category == OTHER
    if is_other.any():
        # Such as the exchange of gradients.
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
    console.say(
        f"predicted: {format_seconds(predicted)}; lost {_signed(lost)}, of which"
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
    # What rounding leaves of nothing is nothing.
    seconds = round(seconds, 9)
    sign = "-" if seconds < 0 else "+" if seconds > 0 else ""
    return sign + format_seconds(abs(seconds))


def _say_moves(timeline: Timeline) -> None:
    """Says which layers moved after the minibatch, and how long that took."""
    seconds: dict[str, float] = {}
    for i in np.flatnonzero(timeline.category == OTHER).tolist():
        event = timeline[i]
        words = str(event.what)
        if words.startswith(MOVE):
            took = event.end - event.start
            seconds[words] = max(took, seconds.get(words, 0.0))
    for words, longest in seconds.items():
        console.say(f"{words}, {format_seconds(longest)}")
