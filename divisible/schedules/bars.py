"""The bars of a timeline, and the text on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import KINDS
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import CATEGORIES

# Blue forward, green backward in a strong (input) and a light tone (weight), wine-red
# update; events that are no computations are pale. Readable for colour-blind eyes and
# in grey.
COLORS = {
    "F": "#4477aa",
    "B": "#228833",
    "I": "#66aa55",
    "W": "#ccbb44",
    "R": "#77ccee",
    "send": "#cc6677",
    "receive": "#ee99aa",
    "wait": "#e4e4e4",
    "update": "#882255",
    "other": "#aa88bb",
}
# The approximate width of the axes, in inches and in points.
WIDTH = 12
_WIDTH_POINTS = 0.85 * 72 * WIDTH
# Lines along the beginnings of bars: their width in points, their brightness, and the
# least width of a bar that has one.
_LINE, _DARKER, _LINED = 0.5, 0.6, 4.0
# Points of a digit at font size 7; the ratio of widths that differ clearly.
_DIGIT, _CLEARLY = 4.6, 1.08
_MOST_TEXTS = 3000
# Half the height of a bar, its middle below the middle of the row, and its z-order.
_COMPUTATION = 0.42, 0.0, 2
# Messages are drawn lower, so that computations that overlap them stay visible. Other
# events, such as an exchange of gradients, are a strip along the foot of the row.
_HEIGHTS = {
    **dict.fromkeys(("send", "receive", "wait"), (0.24, 0.0, 1)),
    "other": (0.07, 0.35, 3),
}
# The colour below bars that follow each other without a pause.
_UNDERLAY = "#777777"
# How much white goes into the colours of a rank's last stage.
_MOST_WHITE = 0.5


def chunks(timeline: EventTable) -> np.ndarray:
    """Returns the place of each computation's stage on its rank: 0 first, 1 last."""
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
    """The least widths of bars with texts, in points.

    Attributes:
        microbatch: The least width of a bar with the number of its microbatch.
        full: The least width of a bar with its stage, kind and microbatch.
    """

    microbatch: float
    full: float

    @classmethod
    def of(cls, timelines: Collection[EventTable], span: float) -> Written:
        """Chooses the widths for all timelines of a picture.

        Args:
            timelines: The timelines, which are drawn on one scale.
            span: Seconds that the axes show.
        """
        widths, short, full = [np.zeros(0)], [""], [""]
        for timeline in timelines:
            compute = timeline.category < len(KINDS)
            widths.append(bar_points(timeline, span)[compute])
            last = timeline.microbatch + timeline.count - 1
            short.append(str(last[compute].max(initial=0)))
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
    """Draws each event as a bar, as wide as the event is long.

    A bar covers its own time exactly, in one colour: where a rank computes without a
    pause there is no white, however narrow its bars are. So bars have no outlines. A
    bar that is wide enough has a dark line along its beginning, which separates it from
    a bar of the same colour before it.
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
        # With antialiasing, white would shine through where two neighbours meet.
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

    Programs that show vector formats let the background shine through where two bars
    meet. A pause must not seem to be there.
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
    """Writes the microbatches of computations on bars that have room for them.

    Args:
        axes: The axes with the bars.
        timeline: The timeline of the bars.
        middle: The middle of each bar, in units of the time axis.
        points: The width of each bar, in points.
        written: The least widths of bars with texts.
    """
    compute = timeline.category < len(KINDS)
    chosen = np.flatnonzero(compute & (points >= written.microbatch))
    if len(chosen) > _MOST_TEXTS or timeline.n_ranks > 48:
        return
    several = chunks(timeline).any()
    for k in chosen:
        text = timeline.microbatches(k)
        if timeline.count[k] > 1 and points[k] < _room_for([text]):
            continue
        if several and points[k] >= written.full:
            text = f"{timeline.stage[k]}{CATEGORIES[timeline.category[k]]}{text}"
        axes.text(
            middle[k],
            timeline.rank[k],
            text,
            ha="center",
            va="center_baseline",
            fontsize=7 if timeline.n_ranks <= 24 else 4,
            # White text would look like a pause.
            color="black",
        )


def _room_for(texts: Sequence[str]) -> float:
    """Returns the points that the longest of some texts needs, with a margin."""
    return _DIGIT * max(map(len, texts)) + 2


def least_width(widths: np.ndarray, needed: float) -> float:
    """Returns the least width of bars that have a text.

    Bars that look alike are treated alike: the widest bar without a text is clearly
    narrower than the narrowest one with a text.

    Args:
        widths: The widths of bars.
        needed: The width that a text needs.

    Returns:
        ``needed`` or more; infinite if no bar is wide enough.

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
