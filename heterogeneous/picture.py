"""Partitions as text, and as pictures."""

from __future__ import annotations

import os

from divisible.files import new_figure, write_picture
from heterogeneous.rectangles import Rectangle, Rectangles

# Size of the square in characters, without the last border.
_WIDTH, _HEIGHT = 48, 16
# Largest number of processors that are listed one by one.
_MOST_ROWS = 32
_INCHES, _DPI = 6.0, 100
_COLORS = ("#88ccee", "#ddcc77", "#cc6677", "#44aa99", "#aa88bb", "#bbbbbb")


def text(partition: Rectangles) -> str:
    """Returns a table of the processors, and the square."""
    return "\n".join([*_head(partition), "", *_rows(partition), "", *square(partition)])


def _head(partition: Rectangles) -> list[str]:
    n, m, l, s = partition.n, partition.m, partition.l, partition.s  # noqa: E741
    count, per_column = partition.n_processors, partition.per_column
    return [
        f"{count} processor{'s' * (count > 1)} in {partition.n_columns}"
        f" column{'s' * (len(per_column) > 1)} of {', '.join(map(str, per_column))};"
        f" {n}-{m}-{l} units, {s} samples",
        f"communication {partition.communication:.10g}",
    ]


def _rows(partition: Rectangles) -> list[str]:
    lines = [
        "processor  column  ability   width  height  samples           hidden units"
    ]
    in_columns = [i for column in partition.columns for i in column]
    for i in in_columns[:_MOST_ROWS]:
        r = partition.rectangles[i]
        samples = f"{r.samples[0]} to {r.samples[1] - 1}"
        units = f"{r.units[0]} to {r.units[1] - 1}"
        lines.append(
            f"{i:9}  {r.column:6}  {partition.abilities[i]:7.4f}  {r.width:6.4f}"
            f"  {r.height:6.4f}  {samples:16}  {units}"
        )
    if len(in_columns) > _MOST_ROWS:
        lines.append(f"... and {len(in_columns) - _MOST_ROWS} more")
    return lines


def square(partition: Rectangles) -> list[str]:
    """Returns the square as lines of characters, from top to bottom.

    A processor's number is in the middle of its rectangle, if it fits.
    """
    canvas = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]
    for r in partition.rectangles:
        _draw(canvas, r)
    return ["".join(line) for line in canvas]


def _draw(canvas: list[list[str]], r: Rectangle) -> None:
    left, right = round(r.x * _WIDTH), round((r.x + r.width) * _WIDTH)
    top = _HEIGHT - round((r.y + r.height) * _HEIGHT)
    bottom = _HEIGHT - round(r.y * _HEIGHT)
    for y in range(top, bottom + 1):
        for x in range(left, right + 1):
            is_side, is_edge = x in (left, right), y in (top, bottom)
            # A corner that a neighbour has drawn on a common border stays a corner.
            if is_side and (is_edge or canvas[y][x] == "+"):
                canvas[y][x] = "+"
            elif is_edge and canvas[y][x] != "+":
                canvas[y][x] = "-"
            elif is_side:
                canvas[y][x] = "|"
    label = str(r.processor)
    if right - left > len(label) and bottom - top > 1:
        start = (left + right - len(label) + 1) // 2
        canvas[(top + bottom) // 2][start : start + len(label)] = label


def plot(partition: Rectangles, path: str | os.PathLike) -> None:
    """Draws the square.

    Args:
        partition: Partition to draw.
        path: Path of the picture; the ending gives the format.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    figure = new_figure((_INCHES, _INCHES), "drawing a partition", _DPI)
    axes = figure.subplots()
    for r in partition.rectangles:
        color = _COLORS[r.column % len(_COLORS)]
        axes.bar(
            r.x, r.height, r.width, r.y, align="edge", color=color, edgecolor="white"
        )
        label = f"{r.processor}\n{partition.abilities[r.processor]:.3f}"
        middle = r.x + r.width / 2, r.y + r.height / 2
        axes.text(*middle, label, ha="center", va="center", fontsize=9)
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel=f"share of {partition.s} samples",
        ylabel=f"share of {partition.m} hidden units",
        title=f"communication {partition.communication:.6g}",
    )
    axes.set_aspect("equal")
    write_picture(path, figure)
