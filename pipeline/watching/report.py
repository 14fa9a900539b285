"""A run on one page of HTML, which needs no network and no other file."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from divisible.notebook_html import Part, Rows, as_html
from divisible.planning.units import count, format_seconds
from divisible.schedules.comparison import CAUSES
from divisible.schedules.timeline import Timeline
from divisible.terminal_text import printable
from pipeline.rebalancing.extension import LOG_NAME
from pipeline.rebalancing.log import read_log, slow_ranks, stragglers
from pipeline.watching import run_log
from pipeline.watching.events import journal_of
from pipeline.watching.report_pictures import curves_picture, timeline_picture
from pipeline.watching.run_line import bubble, number
from pipeline.watching.run_view import RunView
from pipeline.watching.screen import RANK_COLUMNS, clock, head_lines, rank_row

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62em; margin: 2em auto;
       padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-size: 0.9em; margin: 0.6em 0; }
th, td { padding: 0.2em 0.8em 0.2em 0; vertical-align: top; }
thead { border-bottom: 1px solid #999; }
pre { background: #f6f6f6; padding: 0.7em; overflow-x: auto; font-size: 0.85em; }
img { max-width: 100%; } .notice { font-weight: bold; } div { overflow-x: auto; }
"""


def report_html(view: RunView, predicted: Timeline | None = None) -> str:
    """Returns the page of a run.

    A part whose files are missing says so in a line. Pictures need matplotlib; without
    it, there is a line in their place.

    Args:
        view (RunView): The state of the run.
        predicted (Timeline or None): Prediction of a step, to compare the newest
            timeline in the folder with.

    Raises:
        ValueError: If the prediction is of another schedule than the timeline.
    """
    title = f"run {printable(str(view.run))}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        as_html(head_lines(view)),
        as_html([f"written {clock(view.time)}, {time.strftime('%Z')}"]),
        *_section("Warnings", _notices(view)),
        *_section("Curves", _curves(view.run)),
        *_section("Ranks", _ranks(view)),
        *_section("The last timeline", _timeline(view, predicted)),
        *_section("Choices", _choices(view.run)),
        *_section("Moves of layers", _moves(view.run)),
        *_section("Events", _events(view)),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, parts: Iterator[str]) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *parts]


def _lines(*parts: Part) -> str:
    return as_html(parts)


def _picture(draw: Callable[[], str]) -> str:
    try:
        return draw()
    except ImportError as error:
        return _lines(str(error))


def _notices(view: RunView) -> Iterator[str]:
    journal = [entry for entry in journal_of(view.run) if entry.event == "warning"]
    texts = [*view.notices, *(entry.text for entry in journal)]
    for text in dict.fromkeys(texts):
        yield f'<div class="notice">{escape(printable(text, keeps_lines=True))}</div>'
    if not texts:
        yield _lines("none")


def _curves(run: Path) -> Iterator[str]:
    try:
        pictures = run_log.read_run_log(run / run_log.NAME)
    except FileNotFoundError:
        yield _lines(f"there is no file {run_log.NAME}, which LogReport writes")
        return
    except (OSError, ValueError) as error:
        yield _lines(printable(str(error)))
        return
    if pictures:
        yield _picture(lambda: curves_picture(pictures))
    yield _lines(
        Rows(
            [
                ("value", "first", "last", "least", "most"),
                *(
                    (
                        curve.name,
                        *map(number, (curve.values[0], curve.values[-1])),
                        *map(number, (min(curve.values), max(curve.values))),
                    )
                    for curves in pictures.values()
                    for curve in curves
                ),
            ],
            left=(0,),
        )
    )


def _ranks(view: RunView) -> Iterator[str]:
    rows = [rank_row(each, "")[:-1] for each in view.ranks]
    yield _lines(
        "shares of the time from update to update, medians of the last minibatches",
        Rows([RANK_COLUMNS[:-1], *rows], left=(1, 2)),
    )


def _timeline(view: RunView, predicted: Timeline | None) -> Iterator[str]:
    planned = _planned(view)
    if planned is not None:
        yield _lines(planned)
    found = newest_timeline(view.run)
    if found is None:
        yield _lines(
            "there is no timeline in the folder: extend the trainer with"
            " TimelineReport(), or save pipe.timeline()"
        )
        return
    name, timeline = found
    yield _lines(name)
    yield _picture(lambda: timeline_picture(timeline))
    yield f"<pre>{escape(printable(timeline.summary(), keeps_lines=True))}</pre>"
    if predicted is None:
        return
    comparison = timeline.compare(predicted)
    yield _lines(
        f"predicted for {printable(predicted.name)}:"
        f" {format_seconds(predicted.makespan)}; lost {comparison}, of which"
    )
    yield _picture(lambda: timeline_picture(predicted))
    yield _lines(
        Rows(
            [
                ("rank", *CAUSES),
                *(
                    (str(rank), *(f"{value:+.3g} s" for value in row))
                    for rank, row in enumerate(comparison.lost.tolist())
                ),
            ]
        ),
        Rows(
            [
                ("stage", "rank", "computes", "predicted"),
                *(
                    (
                        str(each.stage),
                        str(each.rank),
                        format_seconds(each.measured),
                        format_seconds(each.predicted),
                    )
                    for each in comparison.stages
                ),
            ]
        ),
    )


def _planned(view: RunView) -> Rows | None:
    """Returns a table of what the plan predicts and what was measured."""
    first, known = view.chief, [each for each in view.ranks if each.now is not None]
    if first.planned_step is None or not known:
        return None
    rows = [("", "measured", "by the plan")]
    longest = max(each.now.span for each in known)
    rows.append(
        ("forward and backward", *map(format_seconds, (longest, first.planned_step)))
    )
    share = bubble(view.ranks)
    if first.planned_bubble is not None and share is not None:
        rows.append(("bubble", f"{share:.1%}", f"{first.planned_bubble:.1%}"))
    for each in known:
        if each.planned_seconds is not None:
            times = each.now.computing, each.planned_seconds
            rows.append((f"rank {each.rank} computes", *map(format_seconds, times)))
    return Rows(rows, left=(0,))


def newest_timeline(run: Path) -> tuple[str, Timeline] | None:
    """Returns the name and the content of the newest timeline in a folder."""
    ages = {}
    for path in run.glob("*.json"):
        # Another process may have removed it. A pipe might be read for ever.
        with contextlib.suppress(OSError):
            if path.is_file():
                ages[path] = path.stat().st_mtime
    for path in sorted(ages, key=ages.get, reverse=True):
        with contextlib.suppress(OSError, ValueError):
            timeline = Timeline.load(path)
            if len(timeline):
                return printable(path.name), timeline
    return None


def _choices(run: Path) -> Iterator[str]:
    starts = [entry for entry in journal_of(run) if entry.event == "start"]
    if not starts:
        yield _lines("the run has no journal")
        return
    facts = starts[-1].facts
    about = [facts.get(name) for name in ("versions", "conditions")]
    yield _lines(*(printable(text) for text in about if isinstance(text, str) and text))
    for text in (starts[-1].text, facts.get("plan")):
        if isinstance(text, str):
            yield f"<pre>{escape(printable(text, keeps_lines=True))}</pre>"
    rows = [*_alternatives(facts.get("alternatives"))]
    if rows:
        yield _lines("plans that were not chosen")
        yield _lines(Rows([("plan", "a step", "reason"), *rows], left=(0, 2)))


def _alternatives(found: Any) -> Iterator[tuple[str, str, str]]:
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict):
            seconds = each.get("seconds")
            is_number = isinstance(seconds, (int, float))
            step = format_seconds(seconds) if is_number else "does not fit"
            yield str(each.get("name")), step, str(each.get("reason"))


def _moves(run: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checks = read_log(run / LOG_NAME)
    except FileNotFoundError:
        yield _lines("none: the trainer has no Rebalance")
        return
    except (OSError, ValueError) as error:
        yield _lines(printable(str(error)))
        return
    moves = [check for check in checks if check.moved is not None]
    yield _lines(f"{count(len(checks), 'check')}, {count(len(moves), 'move')}")
    yield _lines(*(printable(check.move_in_words) for check in moves))
    behind = [
        f"rank {each.rank} on {each.host} fell behind from iteration {each.first} to"
        f" {each.last}, with {each.speed:.2f} of its speed"
        for each in stragglers(checks)
    ]
    slow = [
        f"rank {each.rank} on {each.host} has {each.speed:.2f} of the speed of others"
        for each in slow_ranks(checks)
    ]
    yield _lines(*map(printable, (*behind, *slow)))


def _events(view: RunView) -> Iterator[str]:
    rows = [(clock(each.time), each.kind, each.text) for each in view.events]
    if rows:
        yield _lines(Rows([("time", "kind", "event"), *rows], left=(0, 1, 2)))
    else:
        yield _lines("none")
