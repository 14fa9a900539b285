"""The figures, drawn as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.cluster.network import spoken_rate
from benchmarks.paper_tables.points import EQUAL, FIT, OURS, PRINTED
from benchmarks.paper_tables.rows import Row

#: Readable for colour-blind eyes.
COLORS = ("#4477aa", "#228833", "#ee6677", "#ccbb44", "#aa3377", "#66ccee")
MARKERS = "osD^vX"
DPI = 120


def draw(
    number: int, rows: Sequence[Row], folder: Path, name: str = ""
) -> dict[int, str]:
    """Draws a figure of the paper.

    Args:
        number: Number of the figure.
        rows: Points of the figure.
        folder: Folder to write to.
        name: Last part of the files' names.

    Returns:
        Names of the files, by the number of the figure.
    """
    if number == 6:
        drawn = {6: times, 7: speedups, 12: equation}
    else:
        is_one = len({row.point.microbatches for row in rows}) == 1
        of_models = ways if is_one else models
        drawn = {number: {8: rates, 13: of_models, 14: of_models}.get(number, sizes)}
    names = {}
    for each, how in drawn.items():
        figure = Figure(figsize=(11 if how is models else 7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        how(figure, rows)
        names[each] = f"fig{each:02d}{name}.png"
        figure.savefig(folder / names[each], dpi=DPI)
    return names


def times(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 6: the step by number of microbatches, for every number of hosts."""
    axes = _axes(figure, "microbatches", "seconds of a step")
    axes.set_yscale("log")
    _lines(axes, rows, _hosts, lambda r: r.step)
    # Powers of ten alone would leave a few points with one number, or none.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    _legend_beside(axes)


def speedups(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 7: the same as speed-ups, with those of equation (3) and of the paper."""
    axes = _axes(figure, "microbatches", "speed-up over the undivided step")
    _lines(axes, rows, _hosts, _speedup, _speedup_by_equation)
    stars = "\nstars:\nin the paper" * _has_printed(rows)
    _legend_beside(axes, f"dashed:\nequation (3){stars}")


def rates(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 8: the step by number of microbatches, for every rate of the links."""
    axes = _axes(figure, "microbatches", "seconds of a step")
    _lines(axes, rows, _rate, lambda r: r.step, _by_equation)
    _legend_beside(axes, "dashed:\nequation (3)")


def sizes(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 9 to 11: speed-ups over one microbatch, by the width of the layers."""
    axes = _axes(figure, "width of the layers", "speed-up over 1 microbatch")
    rows = [r for r in rows if r.single and r.point.microbatches > 1]
    _lines(
        axes,
        rows,
        lambda r: f"{r.point.samples} samples",
        lambda r: float(np.median(np.divide(r.single, r.seconds))),
        x=lambda r: r.point.size,
    )
    _legend_beside(axes, "microbatches of")


def equation(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 12: equation (3) against measured steps, for the hosts nearest to 16."""
    hosts = min({r.point.hosts for r in rows}, key=lambda n: abs(n - 16))
    axes = _axes(figure, "microbatches", f"seconds of a step, {hosts} hosts")
    rows = [r for r in rows if r.point.hosts == hosts]
    m = [r.point.microbatches for r in rows]
    axes.plot(m, [r.step for r in rows], "o-", color=COLORS[0], label="measured")
    values = [_by_equation(r) for r in rows]
    axes.plot(m, values, "--", color=COLORS[2], label="equation (3)")
    fitted = [r for r in rows if r.point.microbatches in FIT]
    axes.plot(
        [r.point.microbatches for r in fitted],
        [r.step for r in fitted],
        "o",
        color=COLORS[2],
        markersize=9,
        fillstyle="none",
        label="fitted to",
    )
    axes.set_xticks(m, [f"{tick:g}" for tick in m])
    axes.minorticks_off()
    axes.legend()


def models(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 13 and 14: speed-ups, a panel for each way."""
    kinds = dict.fromkeys(map(_way, rows))
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds):
        mine = [row for row in rows if _way(row) == kind]
        _style(axes, "microbatches")
        axes.set_title(kind)
        _lines(axes, mine, _hosts, _speedup, _speedup_by_equation)
    # One for all panels, where it covers nothing.
    lines, names = panels[0].get_legend_handles_labels()
    title = "dashed: equation (3)" + "; star: in the paper" * _has_printed(rows)
    place = "outside lower center"
    figure.legend(lines, names, loc=place, ncols=len(lines), title=title)
    panels[0].set_ylabel("speed-up over the undivided step")


def ways(figure: Figure, rows: Sequence[Row]) -> None:
    """Fig. 13 and 14 with one number of microbatches: speed-ups by number of hosts."""
    m = rows[0].point.microbatches
    axes = _axes(figure, "hosts", f"speed-up over the undivided step, m = {m}")
    _lines(axes, rows, _way, lambda row: row.speedup, x=lambda row: row.point.hosts)
    printed = {row.point.hosts: _printed(row) for row in rows if _printed(row) > 0}
    if printed:
        style = {"color": "black", "markersize": 12, "label": "in the paper"}
        axes.plot(list(printed), list(printed.values()), "*", **style)
    _legend_beside(axes)


def _way(row: Row) -> str:
    point = row.point
    return f"{point.way}, {point.schedule}" if point.cut == OURS else point.way


def _hosts(row: Row) -> str:
    return f"{row.point.hosts} host{'s' * (row.point.hosts > 1)}"


def _rate(row: Row) -> str:
    return spoken_rate(row.point.rate)


def _speedup(row: Row) -> float:
    return row.speedup


def _speedup_by_equation(row: Row) -> float:
    return row.speedup_by_equation


def _by_equation(row: Row) -> float:
    return float(np.median(row.equation)) if row.equation else np.nan


def _printed(row: Row) -> float:
    """Returns the speed-up that the paper has for a point, if it has one."""
    point = row.point
    m, speedup = PRINTED.get(point.model, {}).get(point.hosts, (None, np.nan))
    is_same = (point.microbatches, point.cut) == (m, EQUAL)
    return speedup if is_same else np.nan


def _has_printed(rows: Iterable[Row]) -> bool:
    """Returns whether the paper has a speed-up for any of the points."""
    return not np.all(np.isnan(list(map(_printed, rows))))


def _axes(figure: Figure, x: str, y: str) -> Any:
    axes = figure.add_subplot()
    _style(axes, x)
    axes.set_ylabel(y)
    return axes


def _style(axes: Any, x: str) -> None:
    axes.set_xlabel(x)
    axes.grid(alpha=0.3)
    axes.set_xscale("log")


def _lines(
    axes: Any,
    rows: Iterable[Row],
    label: Callable[[Row], str],
    measured: Callable[[Row], float],
    expected: Callable[[Row], float] | None = None,
    x: Callable[[Row], float] = lambda row: row.point.microbatches,
) -> None:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(label(row), []).append(row)
    ticks = set()
    for number, (name, group) in enumerate(groups.items()):
        group = sorted(group, key=x)
        color = COLORS[number % len(COLORS)]
        places = [x(row) for row in group]
        ticks.update(places)
        style = {"color": color, "markersize": 4}
        marker = MARKERS[number % len(MARKERS)]
        values = [measured(row) for row in group]
        axes.plot(places, values, marker=marker, label=name, **style)
        if expected is not None:
            axes.plot(places, [expected(row) for row in group], "--", **style)
        if measured is _speedup:
            axes.plot(places, list(map(_printed, group)), "*", color=color, ms=12)
    axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    axes.minorticks_off()


def _legend_beside(axes: Any, title: str | None = None) -> None:
    """Draws the legend where it covers no lines."""
    style = {"fontsize": "small", "title_fontsize": "small"}
    axes.figure.legend(loc="outside right upper", title=title, **style)
