"""The commands ``divisible schedule``: schedules without a script."""

from __future__ import annotations

from collections.abc import Sequence

import click

from divisible.planning.profile import Profile
from divisible.planning.stage_costs import stage_costs
from divisible.planning.units import count, format_seconds
from divisible.schedules.catalogue import CATALOGUE, NAMES, create
from divisible.schedules.costs import Costs, equal_layers
from divisible.schedules.plot import describe, plot_timelines
from divisible.schedules.schedule import Schedule
from divisible.schedules.schedule_files import UnknownScheduleError, name_or_file
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline
from pipeline.command_line import console, options
from pipeline.command_line.search import search_command


@click.group("schedule")
def schedule_command() -> None:
    """Checks, draws, compares and searches schedules, without a script.

    SCHEDULE is a name of the catalogue, or a file that has the text of a schedule, as
    print(schedule) and "divisible schedule draw" write it.
    """


schedule_command.add_command(search_command)

_schedules = click.argument("schedules", metavar="SCHEDULE...", nargs=-1, required=True)
_n_stages = click.option(
    "--stages",
    "n_ranks",
    type=options.NUMBER,
    help="Number of stages for a name, where each rank has one. A schedule with several"
    " on a rank has as many ranks, and thinner stages.  [default: as in the first"
    " file]",
)
_n_microbatches = click.option(
    "--microbatches",
    "n_microbatches",
    type=options.NUMBER,
    help="Number of microbatches for a name.  [default: as in the first file]",
)


@schedule_command.command("check")
@_schedules
@_n_stages
@_n_microbatches
@options.speaking
def check_command(schedules, n_ranks, n_microbatches) -> None:
    """Proves that schedules are complete, in order and free of deadlocks.

    Prints a line for each schedule, or its grid with the fault marked. Then the exit
    code is 1.
    """
    for schedule in _read_all(schedules, n_ranks, n_microbatches):
        held = max(schedule.validate().held)
        console.say_wrapped(
            f"{schedule.name}: {count(schedule.n_stages, 'stage')} on"
            f" {count(schedule.n_ranks, 'rank')},"
            f" {count(schedule.n_microbatches, 'microbatch')}; each action runs once,"
            f" after what it needs, and no rank waits for ever. A rank holds at most"
            f" {held:.4g} microbatches in its layers."
        )


@schedule_command.command("draw")
@click.argument("schedule")
@_n_stages
@_n_microbatches
@options.speaking
def draw_command(schedule, n_ranks, n_microbatches) -> None:
    """Prints a schedule as a grid of ranks and steps.

    Redirected to a file, the grid is a schedule that other commands and
    Schedule.parse read. Change it there as you like.
    """
    (found,) = _read_all([schedule], n_ranks, n_microbatches)
    console.say(str(found))


@schedule_command.command("compare")
@_schedules
@_n_stages
@_n_microbatches
@click.option(
    "--profile",
    type=options.Loaded(Profile.load),
    help="Costs of a model's layers, which each schedule cuts into its stages.",
)
@click.option(
    "--times",
    type=options.Parsed("F,I,W", float, several=True),
    help="Seconds of a forward, an input gradient and a weight gradient, in all layers"
    " of a rank, in place of a profile.  [default: 1,1,1]",
)
@click.option(
    "--message",
    type=options.Parsed("number", float),
    help="Seconds of a message between two ranks, in place of a profile.  [default: 0]",
)
@options.plot
@options.speaking
def compare_command(
    schedules, n_ranks, n_microbatches, profile, times, message, plot
) -> None:
    """Simulates schedules, and prints time, bubble and memory of each.

    All schedules run the same layers on the same ranks. The column "held" is the number
    of microbatches in all layers of the fullest rank. It counts activations, and what
    waits for W. The column "above bound" compares the time with a proved bound: no
    order of the same actions takes less.
    """
    if profile is not None and (times is not None or message is not None):
        raise click.UsageError("--profile has times of its own: leave out the others")
    found = _read_all(schedules, n_ranks, n_microbatches)
    _check_same_work(found)
    timelines = {}
    for schedule in found:
        if profile is None:
            costs = _equal_costs(schedule, times, message or 0.0)
        else:
            costs = stage_costs(profile, schedule)
        timelines[schedule.name] = simulate(schedule, costs)
    if len(timelines) < len(found):
        raise click.UsageError(
            "two schedules have the same name: change the name in the first line of a"
            " file"
        )
    _print_comparison(timelines)
    if plot is not None:
        titled = {f"{name}: {describe(each)}": each for name, each in timelines.items()}
        plot_timelines(titled, plot)
        console.say(f"drawn to {plot}")


def _print_comparison(timelines: dict[str, Timeline]) -> None:
    first = next(iter(timelines.values())).makespan
    if not first > 0:
        raise ValueError("the schedules take no time: give --times above 0")
    console.print_table(
        ["schedule", "time", "of the first", "bubble", "held", "above bound"],
        [
            [
                name,
                format_seconds(timeline.makespan),
                f"{timeline.makespan / first:.2f}",
                f"{timeline.bubble.mean():.1%}",
                f"{timeline.peak_held.max():.4g}",
                f"{timeline.gap:.1%}",
            ]
            for name, timeline in timelines.items()
        ],
    )


def _read_all(
    texts: Sequence[str], n_ranks: int | None, n_microbatches: int | None
) -> list[Schedule]:
    """Returns the schedules of names and files, in order.

    Raises:
        UsageError: If a text is neither a name nor a file, or the sizes of a named
            schedule are not known.
        ScheduleError: If a file has no valid schedule.
    """
    try:
        from_files = {text: name_or_file(text) for text in texts if text not in NAMES}
    except UnknownScheduleError as error:
        raise click.UsageError(str(error)) from None
    for schedule in from_files.values():
        n_ranks = n_ranks or schedule.n_ranks
        n_microbatches = n_microbatches or schedule.n_microbatches
    found = []
    for text in texts:
        if text in from_files:
            found.append(from_files[text])
        elif n_ranks is None or n_microbatches is None:
            raise click.UsageError(
                f"{text} is made for any number of stages and microbatches: give"
                f" --stages and --microbatches"
            )
        else:
            n_stages = n_ranks * CATALOGUE[text].stages_per_rank
            found.append(create(text, n_stages, n_microbatches, n_ranks))
    return found


def _check_same_work(schedules: Sequence[Schedule]) -> None:
    """Refuses schedules of which one has more work or ranks than another."""
    first = schedules[0]
    for other in schedules:
        for what in ("n_ranks", "n_microbatches"):
            if getattr(other, what) != getattr(first, what):
                noun = what.removeprefix("n_")
                raise click.UsageError(
                    f"{other.name} has {getattr(other, what)} {noun}, and {first.name}"
                    f" {getattr(first, what)}: schedules compare if they have the same"
                    f" number"
                )


def _equal_costs(
    schedule: Schedule, times: float | Sequence[float] | None, message: float
) -> Costs:
    """Returns the costs of stages of equally many layers.

    Raises:
        ValueError: If there are not three times.
    """
    times = [1.0] * 3 if times is None else times
    if not isinstance(times, list) or len(times) != 3:
        raise ValueError("--times needs three numbers, F,I,W, such as 1,1,1")
    return equal_layers(schedule, *times, latency=message)
