"""Pictures of a report, as texts that a page contains. Only here matplotlib is used."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from divisible.files import new_figure
from divisible.schedules.plot import timeline_figure
from divisible.schedules.timeline import Timeline
from pipeline.watching.run_log import Curve

_WIDTH, _HEIGHT, _COLUMNS = 9.0, 2.4, 2
# Curves differ in colour and in dashes, for readers who see few colours.
_COLORS = ("#4477aa", "#cc6677", "#117733", "#ddaa33", "#aa4499", "#333333")
_DASHES = ("-", "--", "-.", ":")
_MOST_PICTURES = 16


def curves_picture(pictures: Mapping[str, Sequence[Curve]]) -> str:
    """Returns the curves of a log as HTML.

    Args:
        pictures: Curves by the title of their picture.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    chosen = list(pictures.items())[:_MOST_PICTURES]
    n_rows = -(-len(chosen) // _COLUMNS)
    figure = new_figure((_WIDTH, _HEIGHT * n_rows), "drawing curves")
    places = figure.subplots(n_rows, _COLUMNS, squeeze=False).flat
    for axes in places:
        axes.set_visible(False)
    for axes, (title, curves) in zip(figure.axes, chosen):
        axes.set_visible(True)
        for k, curve in enumerate(curves):
            axes.plot(
                curve.steps,
                curve.values,
                label=curve.name,
                color=_COLORS[k % len(_COLORS)],
                linestyle=_DASHES[k % len(_DASHES)],
                marker="." if len(curve.steps) < 2 else None,
            )
        # A name may have dollar signs, which matplotlib would read as formulas.
        axes.set_title(title, loc="left", fontsize=10, parse_math=False)
        axes.tick_params(labelsize=8)
        axes.grid(color="#eeeeee")
        if len(curves) > 1:
            for text in axes.legend(fontsize=7, frameon=False).get_texts():
                text.set_parse_math(False)
    return _as_html(figure, f"curves of {', '.join(title for title, _ in chosen)}")


def timeline_picture(timeline: Timeline) -> str:
    """Returns the picture of a timeline as HTML.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    return _as_html(timeline_figure(timeline), f"timeline {timeline.name}")


def _as_html(figure: Any, words: str) -> str:
    """Returns a picture as an element that needs no other file.

    As a file of its own within the page, its names do not collide with those of other
    pictures.
    """
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'
