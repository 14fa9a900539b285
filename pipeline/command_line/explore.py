"""The command ``divisible explore``."""

from __future__ import annotations

import re
import threading
import webbrowser
from typing import Any

import click

from divisible.explore.server import Server
from divisible.explore.sources import Sources
from divisible.explore.standalone import write_page
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.records import reading_json
from divisible.schedules.schedule import Schedule
from divisible.schedules.schedule_files import read_schedule
from divisible.schedules.timeline import Timeline
from pipeline.command_line import console, options
from pipeline.command_line.simulate import profiles_of

# A row of a schedule's text, which is near the beginning of its file.
_ROW, _BEGINNING = re.compile(r"^[ \t]*rank[ \t]+0[ \t]", re.MULTILINE), 1 << 16


def _load(path: str) -> Plan | Profile | Timeline | Schedule:
    """Loads a file of any kind that the page shows."""
    with open(path, encoding="utf-8", errors="replace") as file:
        if _ROW.search(file.read(_BEGINNING)):
            return read_schedule(path)
    kinds = "a plan, a profile, a timeline or the text of a schedule"
    with reading_json(path, kinds) as content:
        kind = content.get("divisible")
        if kind == "profile":
            load = Profile.load
        elif kind == "plan" or "cuts" in content:
            load = Plan.load
        elif "traceEvents" in content:
            load = Timeline.load
        else:
            raise ValueError("it is another kind of file")
    return load(path)


@click.command("explore")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=options.Loaded(_load))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page on this machine.  [default: one that is free]",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Write a page that needs no server, with a few schedules, and end.",
)
@options.speaking
def explore_command(files, port, no_browser, output) -> None:
    """Opens a page to play with schedules in the browser.

    Ranks, microbatches, times, messages and memory are controls; the page draws the
    schedule, its simulated timeline and the memory of each rank, and says why a rank
    waits. FILE is a plan, profiles of a model's layers, a measured timeline, or the
    text of a schedule. The server answers on this machine alone, until Ctrl-C ends it.
    """
    sources = _sources(files)
    # A file that the page cannot draw is refused here, not on an empty page.
    sources.first_question()
    if sources.left_out:
        console.say_wrapped(sources.left_out)
    if output is not None:
        write_page(output, sources)
        console.say(f"written to {output}")
        return
    with Server(sources, port) as server:
        console.say(f"{server.url}  (Ctrl-C ends it)")
        if not no_browser:
            # A browser of the terminal is awaited, and loads the page meanwhile.
            opening = (server.url,)
            threading.Thread(target=webbrowser.open, args=opening, daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.say("ended")


def _sources(files: tuple[Any, ...]) -> Sources:
    """Returns what was read; a plan brings its profiles, unless there are others.

    Raises:
        UsageError: If there are two plans, two timelines, or two schedules.
    """
    alone = {}
    for kind in (Plan, Timeline, Schedule):
        found = [each for each in files if isinstance(each, kind)]
        if len(found) > 1:
            raise click.UsageError(
                f"there are {len(found)} {kind.__name__.lower()}s: give one"
            )
        alone[kind] = found[0] if found else None
    profiles = [each for each in files if isinstance(each, Profile)]
    plan = alone[Plan]
    if plan is not None and not profiles:
        profiles = profiles_of(plan)
    return Sources(plan, profiles, alone[Timeline], alone[Schedule])
