"""The bars of a timeline, and what is written on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import KINDS
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import CATEGORIES

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
# The width of the axes, about, in inches and in points.
WIDTH = 12
_WIDTH_POINTS = 0.85 * 72 * WIDTH
# Lines along the beginnings of bars: how wide and how dark they are, and how wide a bar
# with a line is at least.
_LINE, _DARKER, _LINED = 0.5, 0.6, 4.0
# Points of a digit at font size 7. Bars are clearly wider than others by this factor.
_DIGIT, _CLEARLY = 4.6, 1.08
_MOST_TEXTS = 3000
# Half the height of a bar, its middle below that of the row, and what it lies upon.
_COMPUTATION = 0.42, 0.0, 2
# Messages are drawn lower, so that what they overlap with stays visible. What else
# goes on, such as an exchange of gradients, is a strip along the foot of the row.
_HEIGHTS = {
    **dict.fromkeys(("send", "receive", "wait"), (0.24, 0.0, 1)),
    "other": (0.07, 0.35, 3),
}
# Lies below bars that follow each other without a pause.
_UNDERLAY = "#777777"
# How much white goes into the colours of a rank's last stage.
_MOST_WHITE = 0.5


def chunks(timeline: EventTable) -> np.ndarray:
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


class Written(NamedTuple):
    """The widths from which on bars have texts, in points.

    Attributes:
        microbatch: The width from which on it is the microbatch.
        full: The width from which on it is stage, kind and microbatch.
    """

    microbatch: float
    full: float

    @classmethod
    def of(cls, timelines: Collection[EventTable], span: float) -> Written:
        """Chooses widths for all timelines of a picture.

        Args:
            timelines: The timelines, which are drawn on one scale.
            span: Seconds that the axes show.
        """
        widths, short, full = [np.zeros(0)], [""], [""]
        for timeline in timelines:
            compute = timeline.category < len(KINDS)
            widths.append(bar_points(timeline, span)[compute])
            short.append(str(timeline.microbatch[compute].max(initial=0)))
            stage = timeline.stage[compute].max(initial=0)
            full.append(f"{stage}F{short[-1]}")
        every = np.concatenate(widths)
        return cls(*(least_width(every, _room_for(texts)) for texts in (short, full)))


def draw_bars(
    axes,
    timeline: EventTable,
    begin: float,
    scale: float,
    span: float,
    written: Written,
) -> None:
    """Draws each event as a bar, as wide as it is long.

    Nothing but a bar's own colour lies on it, and nothing of it beside it: where a rank
    computes without a pause there is no white, however narrow its bars are. So bars
    have no outlines. A bar that is wide enough has a dark line along its beginning, to
    tell it from one of the same colour before it.
    """
    # matplotlib is optional.
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgb

    left = (timeline.start - begin) * scale
    right = (timeline.end - begin) * scale
    points = bar_points(timeline, span)
    white = _MOST_WHITE * chunks(timeline)
    axes.add_collection(
        PolyCollection(
            _rectangles(*_busy_times(timeline, left, right), _COMPUTATION[0]),
            facecolors=_UNDERLAY,
            edgecolors="none",
            antialiaseds=False,
            zorder=_COMPUTATION[2] - 0.5,
        )
    )
    for code, category in enumerate(CATEGORIES):
        chosen = timeline.category == code
        if not chosen.any():
            continue
        half, middle, order = _HEIGHTS.get(category, _COMPUTATION)
        middle = timeline.rank[chosen] + middle
        x0, x1 = left[chosen], right[chosen]
        # Rows of colours, mixed with white for the later stages of a rank.
        color = np.array(to_rgb(COLORS[category]))
        lighter = white[chosen, None]
        faces = color * (1 - lighter) + lighter
        # Antialiased, two neighbours would let white through where they meet.
        axes.add_collection(
            PolyCollection(
                _rectangles(middle, x0, x1, half),
                facecolors=faces,
                edgecolors="none",
                antialiaseds=False,
                zorder=order,
            )
        )
        wide = points[chosen] >= _LINED
        # The line is drawn within the bar.
        x = x0[wide] + _LINE / _WIDTH_POINTS * span * scale
        low, high = middle[wide] - half, middle[wide] + half
        ends = np.stack([x, low, x, high], 1).reshape(-1, 2, 2)
        axes.add_collection(
            LineCollection(
                ends,
                colors=faces[wide] * _DARKER,
                linewidths=_LINE,
                antialiaseds=False,
                capstyle="butt",
                zorder=order + 0.5,
            )
        )
    _write_microbatches(axes, timeline, (left + right) / 2, points, written)


def _rectangles(
    middle: np.ndarray, left: np.ndarray, right: np.ndarray, half: float
) -> np.ndarray:
    """Returns the corners of rectangles, of shape (n, 4, 2)."""
    low, high = middle - half, middle + half
    x = np.stack([left, left, right, right], 1)
    return np.stack([x, np.stack([low, high, high, low], 1)], 2)


def _busy_times(
    timeline: EventTable, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns when ranks compute without a pause: ranks, beginnings and ends.

    Programs that show vector formats let what lies below shine through where two bars
    meet. That must not look like a pause.
    """
    compute = timeline.category < len(KINDS)
    rank, x0, x1 = timeline.rank[compute], left[compute], right[compute]
    same = (rank[1:] == rank[:-1]) & (x0[1:] <= x1[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~same])[: rank.size])
    last = np.concatenate([first[1:], [rank.size]])[: first.size] - 1
    return rank[first], x0[first], x1[last]


def bar_points(timeline: EventTable, span: float) -> np.ndarray:
    """Returns the width of each event's bar, in points, on axes of ``span`` seconds."""
    return (timeline.end - timeline.start) / span * _WIDTH_POINTS


def _write_microbatches(
    axes, timeline: EventTable, middle: np.ndarray, points: np.ndarray, written: Written
) -> None:
    """Writes the microbatches of computations on those bars that have room for it.

    Args:
        axes: The axes with the bars.
        timeline: The timeline of the bars.
        middle: Where the middle of each bar is.
        points: The width of each bar.
        written: The widths from which on there is room.
    """
    compute = timeline.category < len(KINDS)
    chosen = np.flatnonzero(compute & (points >= written.microbatch))
    if len(chosen) > _MOST_TEXTS or timeline.n_ranks > 48:
        return
    several = chunks(timeline).any()
    for k in chosen:
        text = str(timeline.microbatch[k])
        if several and points[k] >= written.full:
            text = f"{timeline.stage[k]}{CATEGORIES[timeline.category[k]]}{text}"
        axes.text(
            middle[k],
            timeline.rank[k],
            text,
            ha="center",
            va="center_baseline",
            fontsize=7 if timeline.n_ranks <= 24 else 4,
            # White would look like a rank that waits.
            color="black",
        )


def _room_for(texts: Sequence[str]) -> float:
    """Returns the points that the longest of some texts needs, with a margin."""
    return _DIGIT * max(map(len, texts)) + 2


def least_width(widths: np.ndarray, needed: float) -> float:
    """Returns the width from which on bars are written on.

    Bars that look alike are treated alike: the widest bar without a text is clearly
    narrower than the narrowest one with a text.

    Args:
        widths: The widths of bars.
        needed: The width that a text needs.

    Returns:
        ``needed`` or more; infinite if there are no such bars.

    Example:
        >>> least_width(np.array([4.99, 5.0, 5.01, 7.0]), needed=5.0)
        7.0
        >>> least_width(np.array([3.0, 5.0, 5.01, 7.0]), needed=5.0)
        5.0
    """
    near = np.sort(widths[widths > needed / _CLEARLY])
    narrower = np.concatenate([[0.0], near[:-1]])
    clear = near[(near >= needed) & (narrower < near / _CLEARLY)]
    return float(clear.min(initial=np.inf))
