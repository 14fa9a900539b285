"""Pictures of timelines. Only this module and `bars` need matplotlib."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Collection
from typing import Any

import numpy as np

from divisible.files import new_figure, write_picture
from divisible.schedules.bars import (
    COLORS,
    WIDTH,
    Written,
    bar_points,
    chunks,
    draw_bars,
)
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import CATEGORIES

LABELS = {
    "F": "F forward",
    "B": "B backward",
    "I": "I input gradients",
    "W": "W weight gradients",
    "R": "R recomputed forward",
}
# A timeline is drawn as an image, in which colours mix, if it has more events than
# this, or if half of its bars are narrower than this number of points, about a pixel.
_MOST_BARS, _NARROWEST = 20_000, 0.5
_PIXELS = 1600
DPI = 150
# Characters in a line of a title.
_TITLE_COLUMNS = 120


def plot_timeline(
    timeline: EventTable, path: str | os.PathLike, title: str | None = None
) -> None:
    """Draws one row per rank, with the share of the bubble at its right.

    Events are bars. The number of the microbatch is written on bars that have room for
    it. If most bars would be narrower than a pixel, the picture is an image in which
    colours mix in proportion to their time.

    Args:
        timeline: The timeline to draw.
        path: The file to write. Its ending gives the format.
        title: Title above the picture; name and makespan by default.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    plot_timelines({_title(timeline) if title is None else title: timeline}, path)


def plot_timelines(timelines: dict[str, EventTable], path: str | os.PathLike) -> None:
    """Draws several timelines below each other, on one scale of time.

    Args:
        timelines: The timelines to draw, by their titles.
        path: The file to write. Its ending gives the format.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    write_picture(path, _figure(timelines))


def timeline_svg(timeline: EventTable) -> str:
    """Returns the picture of a timeline as SVG, for a notebook.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    picture = io.StringIO()
    timeline_figure(timeline).savefig(picture, format="svg")
    return picture.getvalue()


def timeline_figure(timeline: EventTable) -> Any:
    """Returns the picture of a timeline, a ``matplotlib.figure.Figure``.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _figure({_title(timeline): timeline})


def _figure(timelines: dict[str, EventTable]) -> Any:
    heights = [
        min(max(0.34 * max(timeline.n_ranks, 1), 0.6), 8.0)
        for timeline in timelines.values()
    ]
    height = sum(heights) + 0.5 * len(heights) + 1.0
    instead = "use Timeline.save and open the file in chrome://tracing"
    figure = new_figure((WIDTH, height), "Timeline.plot", DPI, instead)
    rows = figure.subplots(
        len(timelines), sharex=True, squeeze=False, height_ratios=heights
    )
    span = max(timeline.makespan for timeline in timelines.values()) or 1.0
    scale, unit = time_unit(span)
    written = Written.of(timelines.values(), span)
    for axes, (title, timeline) in zip(rows[:, 0], timelines.items()):
        _draw(axes, timeline, span, scale, written)
        lines = textwrap.fill(title, _TITLE_COLUMNS)
        axes.set_title(lines, loc="left", fontsize=11)
    axes.set_xlabel(f"time [{unit}]")
    figure.legend(
        handles=_legend(timelines.values(), span),
        loc="outside lower center",
        ncol=9,
        frameon=False,
        fontsize=9,
    )
    return figure


def _title(timeline: EventTable) -> str:
    ranks = f"{timeline.n_ranks} rank{'s' * (timeline.n_ranks != 1)}"
    return f"{timeline.name} on {ranks}: {describe(timeline)}"


def describe(timeline: EventTable) -> str:
    """Returns the length of a timeline and the mean of its ranks' bubbles, as text."""
    scale, unit = time_unit(timeline.makespan or 1.0)
    bubble = timeline.bubble.mean() if len(timeline) else 0.0
    return f"{timeline.makespan * scale:.4g} {unit}, bubble {bubble:.1%}"


def _draw(
    axes, timeline: EventTable, span: float, scale: float, written: Written
) -> None:
    """Draws one timeline on axes that are ``span`` seconds wide."""
    n_ranks = max(timeline.n_ranks, 1)
    begin = float(timeline.start.min()) if len(timeline) else 0.0
    axes.set_xlim(0, span * scale)
    axes.set_ylim(n_ranks - 0.5, -0.5)
    axes.set_facecolor("#fafafa")
    if _has_bars(timeline, span):
        draw_bars(axes, timeline, begin, scale, span, written)
    else:
        _draw_image(axes, timeline, begin, scale, timeline.makespan or 1.0)
    rows = _some_ranks(n_ranks)
    axes.set_yticks(rows, [f"rank {rank}" for rank in rows])
    axes.tick_params(axis="y", length=0)
    bubble = timeline.bubble if len(timeline) else np.zeros(n_ranks)
    right = axes.secondary_yaxis("right")
    right.set_yticks(rows, [f"{bubble[rank]:.1%}" for rank in rows])
    right.tick_params(length=0)
    right.set_ylabel("bubble")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    right.spines["right"].set_visible(False)


def _has_bars(timeline: EventTable, span: float) -> bool:
    """Returns whether events are drawn as bars, or as an image."""
    if not len(timeline):
        return True
    narrow = np.median(bar_points(timeline, span)) < _NARROWEST
    return len(timeline) <= _MOST_BARS and not narrow


def _legend(timelines: Collection[EventTable], span: float) -> list:
    # matplotlib is optional.
    from matplotlib.patches import Patch

    handles = [
        Patch(color=COLORS[category], label=LABELS.get(category, category))
        for code, category in enumerate(CATEGORIES)
        if any((timeline.category == code).any() for timeline in timelines)
    ]
    if not all(_has_bars(timeline, span) for timeline in timelines):
        handles.append(Patch(facecolor="none", label="mixed colors: shares of time"))
    elif any(chunks(timeline).any() for timeline in timelines):
        handles.append(Patch(facecolor="none", label="paler: later stage of the rank"))
    return handles


def time_unit(seconds: float) -> tuple[float, str]:
    """Returns a unit of time that suits a scale, and the factor from seconds to it."""
    if seconds < 1e-3:
        return 1e6, "µs"
    if seconds < 1:
        return 1e3, "ms"
    return 1.0, "s"


def _some_ranks(n_ranks: int) -> list[int]:
    """Chooses at most two dozen ranks to label, at round distances."""
    step = 1
    while n_ranks > 24 * step:
        step *= 2
    return list(range(0, n_ranks, step))


def _draw_image(axes, timeline: EventTable, begin: float, scale, makespan) -> None:
    # matplotlib is optional.
    from matplotlib.colors import to_rgb

    columns = _PIXELS
    seconds = np.zeros((len(CATEGORIES), timeline.n_ranks, columns))
    left = (timeline.start - begin) / makespan * columns
    right = (timeline.end - begin) / makespan * columns
    first = np.minimum(left.astype(np.int64), columns - 1)
    last = np.minimum(right.astype(np.int64), columns - 1)
    # A bar covers part of its first and last column, and all columns in between. The
    # latter are added as steps up and down and summed up along the row.
    steps = np.zeros((len(CATEGORIES), timeline.n_ranks, columns + 1))
    where = timeline.category, timeline.rank
    same = first == last
    np.add.at(seconds, (*where, first), np.where(same, right - left, first + 1 - left))
    np.add.at(seconds, (*where, last), np.where(same, 0.0, right - last))
    np.add.at(steps, (*where, first + 1), np.where(same, 0.0, 1.0))
    np.add.at(steps, (*where, last), np.where(same, 0.0, -1.0))
    seconds += np.cumsum(steps[:, :, :-1], axis=2)

    # Mixing the colours keeps the proportions where bars are thinner than a column.
    palette = np.array([to_rgb(COLORS[category]) for category in CATEGORIES])
    idle = np.clip(1.0 - seconds.sum(axis=0), 0.0, 1.0)
    total = np.maximum(seconds.sum(axis=0) + idle, 1e-12)
    image = np.einsum("crx,ck->rxk", seconds, palette) + idle[..., None] * 0.98
    axes.imshow(
        np.clip(image / total[..., None], 0.0, 1.0),
        extent=(0, makespan * scale, timeline.n_ranks - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
