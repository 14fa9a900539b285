"""Shows in the documentation what the catalogue knows of the schedules.

    .. schedule-choices::       when to take which
    .. schedule-comparison::    what they take and hold, by simulation
    .. schedule-functions::     the reference of their functions

A new entry of `divisible.schedules.catalogue` appears in all of them.
"""

from __future__ import annotations

from functools import partial

from catalogue_tables import directive, table

from divisible import simulate
from divisible.schedules import Costs, catalogue
from divisible.schedules.catalogue import CATALOGUE, Entry, create
from divisible.schedules.steady_state import steady_seconds

# Ranks and microbatches of the compared schedules.
_N_RANKS, _N_MICROBATCHES = 4, 8


def choices() -> list[str]:
    """Tells when to take which schedule, and how many stages it needs on a rank."""
    rows = [
        (f"``'{entry.name}'``", entry.summary, entry.placement.value)
        for entry in CATALOGUE.values()
    ]
    return table("15 60 25", [("schedule", "take it", "stages on a rank"), *rows])


def comparison() -> list[str]:
    """Simulates all schedules with stages that take equally long."""
    rows = [(f"``'{entry.name}'``", *_simulated(entry)) for entry in CATALOGUE.values()]
    header = "schedule", "seconds", "each of many", "bubble", "held"
    return table("auto", [header, *rows])


def functions() -> list[str]:
    """Names the functions that make the schedules."""
    return [
        f".. autofunction:: divisible.schedules.{entry.make.__name__}"
        for entry in CATALOGUE.values()
    ]


def _simulated(entry: Entry) -> tuple[str, str, str, str]:
    # Several stages on a rank are as much shorter.
    chunks = entry.stages_per_rank
    schedule = create(entry.name, _N_RANKS * chunks, _N_MICROBATCHES, _N_RANKS)
    seconds = 1 / chunks
    run = partial(simulate, schedule, Costs(seconds, seconds, seconds))
    timeline = run()
    versions = schedule.weight_versions
    steady = steady_seconds(timeline, lambda n: run(n_minibatches=n), versions)
    held = max(schedule.validate().held)
    bubble = f"{timeline.bubble[0]:.1%}"
    return f"{timeline.makespan:g}", f"{steady:.3g}", bubble, f"{held:g}"


def setup(app) -> dict[str, bool]:
    """Registers the directives with Sphinx."""
    for make in (choices, comparison, functions):
        app.add_directive(f"schedule-{make.__name__}", directive(make, catalogue))
    return {"parallel_read_safe": True}
