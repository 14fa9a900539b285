"""Draws timelines; the only module here that needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from divisible.schedules.actions import KINDS
from divisible.schedules.events import CATEGORIES

if TYPE_CHECKING:
    from divisible.schedules.timeline import Timeline

# Blue forward, green backward in a strong (input) and a light tone (weight); what is
# not computation is kept pale. Readable for colour-blind eyes and in grey.
COLORS = {
    "F": "#4477aa",
    "B": "#228833",
    "I": "#66aa55",
    "W": "#ccbb44",
    "R": "#77ccee",
    "send": "#cc6677",
    "receive": "#ee99aa",
    "wait": "#e4e4e4",
    "other": "#aa88bb",
}
LABELS = {
    "F": "F forward",
    "B": "B backward",
    "I": "I input gradients",
    "W": "W weight gradients",
    "R": "R recomputed forward",
}
# More events than this are drawn as an image: bars would be thinner than a pixel.
_MOST_BARS = 20_000
_PIXELS = 1600
# Half the height of a bar, its middle below that of the row, and what it lies upon.
_COMPUTATION = 0.42, 0.0, 2
# Messages are drawn lower, so that what they overlap with stays visible. What else
# goes on, such as an exchange of gradients, is a strip along the foot of the row.
_HEIGHTS = {
    **dict.fromkeys(("send", "receive", "wait"), (0.24, 0.0, 1)),
    "other": (0.07, 0.35, 3),
}
# How much white goes into the colours of a rank's last stage.
_MOST_WHITE = 0.5
DPI = 150


def plot_timeline(
    timeline: Timeline, path: str | os.PathLike, title: str | None = None
) -> None:
    """Draws one row per rank, with the share of the bubble at its right.

    Few events are bars, with the microbatch written on them where it fits. Many
    events become an image in which colours mix in proportion to their time.

    Args:
        timeline: What to draw.
        path: Where to write; the ending gives the format.
        title: Above the picture; name and makespan by default.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    if title is None:
        ranks = f"{timeline.n_ranks} rank{'s' * (timeline.n_ranks != 1)}"
        title = f"{timeline.name} on {ranks}: {describe(timeline)}"
    plot_timelines({title: timeline}, path)


def plot_timelines(timelines: dict[str, Timeline], path: str | os.PathLike) -> None:
    """Draws several timelines below each other, on one scale of time.

    Args:
        timelines: What to draw, by the title of each.
        path: Where to write; the ending gives the format.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Timeline.plot needs matplotlib; install it (pip install matplotlib), or "
            "use Timeline.save and open the file in chrome://tracing"
        ) from error
    heights = [
        min(max(0.34 * max(timeline.n_ranks, 1), 0.6), 8.0)
        for timeline in timelines.values()
    ]
    height = sum(heights) + 0.5 * len(heights) + 1.0
    figure = Figure(figsize=(12, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(
        len(timelines), sharex=True, squeeze=False, height_ratios=heights
    )
    span = max(timeline.makespan for timeline in timelines.values()) or 1.0
    scale, unit = time_unit(span)
    for axes, (title, timeline) in zip(rows[:, 0], timelines.items()):
        _draw(axes, timeline, span, scale)
        axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(f"time [{unit}]")
    figure.legend(
        handles=_legend(timelines.values()),
        loc="outside lower center",
        ncol=9,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path)


def describe(timeline: Timeline) -> str:
    """Says how long a timeline is, and the mean of its ranks' bubbles."""
    scale, unit = time_unit(timeline.makespan or 1.0)
    bubble = timeline.bubble.mean() if len(timeline) else 0.0
    return f"{timeline.makespan * scale:.4g} {unit}, bubble {bubble:.1%}"


def _draw(axes, timeline: Timeline, span: float, scale: float) -> None:
    """Draws one timeline on axes that are ``span`` seconds wide."""
    n_ranks = max(timeline.n_ranks, 1)
    begin = float(timeline.start.min()) if len(timeline) else 0.0
    axes.set_xlim(0, span * scale)
    axes.set_ylim(n_ranks - 0.5, -0.5)
    axes.set_facecolor("#fafafa")
    if len(timeline) <= _MOST_BARS:
        _draw_bars(axes, timeline, begin, scale, span)
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


def _legend(timelines: Collection[Timeline]) -> list:
    # matplotlib is optional.
    from matplotlib.patches import Patch

    handles = [
        Patch(color=COLORS[category], label=LABELS.get(category, category))
        for code, category in enumerate(CATEGORIES)
        if any((timeline.category == code).any() for timeline in timelines)
    ]
    if any(len(timeline) > _MOST_BARS for timeline in timelines):
        handles.append(Patch(facecolor="none", label="mixed: share of the time"))
    elif any(_chunks(timeline).any() for timeline in timelines):
        handles.append(Patch(facecolor="none", label="paler: later stage of the rank"))
    return handles


def time_unit(seconds: float) -> tuple[float, str]:
    """Returns what to multiply seconds by for a scale, and its unit."""
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


def _chunks(timeline: Timeline) -> np.ndarray:
    """Places each computation's stage among its rank's: 0 the first, 1 the last."""
    place = np.zeros(len(timeline))
    for begin, end in zip(timeline.offsets[:-1], timeline.offsets[1:]):
        compute = timeline.category[begin:end] < len(KINDS)
        stages, position = np.unique(
            np.where(compute, timeline.stage[begin:end], -1), return_inverse=True
        )
        first = int((stages < 0).any())
        position = np.maximum(position - first, 0)
        place[begin:end] = position / max(len(stages) - first - 1, 1)
    return place


def _draw_bars(axes, timeline: Timeline, begin: float, scale, span) -> None:
    # matplotlib is optional.
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    left = (timeline.start - begin) * scale
    right = (timeline.end - begin) * scale
    few = len(timeline) <= 2000
    white = _MOST_WHITE * _chunks(timeline)
    for code, category in enumerate(CATEGORIES):
        chosen = timeline.category == code
        if not chosen.any():
            continue
        half, middle, order = _HEIGHTS.get(category, _COMPUTATION)
        middle = timeline.rank[chosen] + middle
        low, high = middle - half, middle + half
        x0, x1 = left[chosen], right[chosen]
        corners = np.stack(
            [np.stack([x0, x0, x1, x1], 1), np.stack([low, high, high, low], 1)], 2
        )
        # Rows of colours, mixed with white for the later stages of a rank.
        color = np.array(to_rgb(COLORS[category]))
        lighter = white[chosen, None]
        axes.add_collection(
            PolyCollection(
                corners,
                facecolors=color * (1 - lighter) + lighter,
                edgecolors="white" if few else "none",
                linewidths=0.5 if few else 0.0,
                zorder=order,
            )
        )
    _write_microbatches(axes, timeline, (left + right) / 2, white, span)


def _write_microbatches(
    axes, timeline: Timeline, middle: np.ndarray, white: np.ndarray, span: float
) -> None:
    """Writes the microbatches of computations on those bars that have room for it.

    Args:
        axes: With the bars.
        timeline: Of the bars.
        middle: Of each bar.
        white: How much white is in its colour.
        span: Seconds that the axes show.
    """
    # About seven points of width for each digit at this size of figure and font.
    points = (timeline.end - timeline.start) / span * 12 * 72 * 0.85
    digits = np.char.str_len(timeline.microbatch.astype(str))
    written = (timeline.category < len(KINDS)) & (points > 4.6 * digits + 2)
    if timeline.n_ranks > 48 or written.sum() > 3000:
        return
    several = white.any()
    pale = [KINDS.index("W"), KINDS.index("R")]
    dark = np.isin(timeline.category, pale) | (white > 0)
    for k in np.flatnonzero(written):
        text = str(timeline.microbatch[k])
        full = f"{timeline.stage[k]}{CATEGORIES[timeline.category[k]]}{text}"
        if points[k] > 4.6 * len(full) + 2 and several:
            text = full
        axes.text(
            middle[k],
            timeline.rank[k],
            text,
            ha="center",
            va="center_baseline",
            fontsize=7 if timeline.n_ranks <= 24 else 4,
            color="black" if dark[k] else "white",
        )


def _draw_image(axes, timeline: Timeline, begin: float, scale, makespan) -> None:
    # matplotlib is optional.
    from matplotlib.colors import to_rgb

    columns = _PIXELS
    seconds = np.zeros((len(CATEGORIES), timeline.n_ranks, columns))
    left = (timeline.start - begin) / makespan * columns
    right = (timeline.end - begin) / makespan * columns
    first = np.minimum(left.astype(np.int64), columns - 1)
    last = np.minimum(right.astype(np.int64), columns - 1)
    # A bar covers part of its first and last column, and all of those between; the
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
