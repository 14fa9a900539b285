"""The command ``divisible schedule search``."""

from __future__ import annotations

import math

import click

from divisible.files import written_aside
from divisible.planning.plan import Plan
from divisible.planning.plan_order import shortest_order
from divisible.planning.plan_simulation import simulate_plan
from divisible.planning.units import format_seconds
from divisible.schedules.lower_bound import above
from pipeline.command_line import console, options
from pipeline.command_line.simulate import (
    draw,
    print_timeline,
    profiles_of,
)


def _seconds(text: str) -> float:
    """Parses seconds for a search."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is not 0 seconds or more")
    return value


@click.command("search")
@click.argument("plan", type=options.Loaded(Plan.load))
@options.profiles(required=False)
@click.option(
    "--held",
    type=options.Parsed("number,...", float, several=True),
    help="Number of microbatches that a rank may hold at once: one value for all, or"
    " one for each.  [default: as with the plan's schedule]",
)
@click.option(
    "--seconds",
    type=options.Parsed("seconds", _seconds),
    default=30.0,
    show_default=True,
    help="Seconds for the search.",
)
@options.output("schedule.txt")
@options.plot
@options.speaking
def search_command(plan, profiles, held, seconds, output, plot) -> None:
    """Searches for the shortest schedule of a plan's stages, and proves a bound.

    A solver orders the forwards, input gradients and weight gradients of each rank. No
    schedule of these stages, within the same memory, takes less time than the printed
    bound. A script reads the file by Schedule.parse, and passes the schedule to its
    pipeline.
    """
    profiles = profiles or profiles_of(plan)
    found, timeline = shortest_order(plan, profiles, held=held, seconds=seconds)
    # Saved before it is printed: "| head" closes the pipe, which ends the command.
    with written_aside(output) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(f"{found.schedule}\n")
    own = simulate_plan(plan, profiles)
    console.say_wrapped(f"{plan.title}: {format_seconds(own.makespan)}")
    print_timeline(timeline)
    console.say(f"written to {output}")
    draw(timeline, plot)
    solver = f", by {found.solver}" if found.solver else ""
    console.say_wrapped(
        f"{format_seconds(found.makespan)}, {above(found.gap)} under this limit of"
        f" memory{solver}"
    )
