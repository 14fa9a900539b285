"""Pictures of sensitivities of layers, and of a model that becomes smaller."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from divisible.files import new_figure, write_picture
from divisible.records import shown
from divisible.terminal_text import printable


def plot_sensitivity(found: Any, path: str | os.PathLike | None = None) -> Any:
    """Draws the metric over the degrees, a line a layer; methods side by side.

    Args:
        found (Sensitivity): Measured sensitivities.
        path: Path of the picture; the ending gives the format. ``None`` to write none.

    Returns:
        matplotlib.figure.Figure: The picture.
    """
    pruned = list(dict.fromkeys(t.method for t in found.trials if t.degree))
    others = list(dict.fromkeys(t.method for t in found.trials if not t.degree))
    panels = [*pruned, *(["bits"] if others else [])]
    size = 1 + 4.5 * len(panels), 4
    figure = new_figure(size, "drawing a sensitivity table")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, panels):
        for layer in found.sizes:
            own = [t for t in found.trials if t.layer == layer]
            if panel == "bits":
                own = [t for t in own if not t.degree]
                axis.plot([t.method for t in own], [t.metric for t in own], "o")
                continue
            own = sorted((t for t in own if t.method == panel), key=lambda t: t.degree)
            degrees = [0, *(t.degree for t in own)]
            metrics = [found.base, *(t.metric for t in own)]
            axis.plot(degrees, metrics, "o-", label=layer)
        axis.axhline(found.base, color="0.6", linewidth=0.8, zorder=0)
        axis.set_title(panel)
        axis.set_xlabel("" if panel == "bits" else "part that is zero")
    axes[0].set_ylabel(f"metric, {found.better} is better")
    if pruned:
        axes[0].legend(title="layer", fontsize="small")
    if path is not None:
        write_picture(path, figure, dpi=120)
    return figure


def plot_progress(log: str | os.PathLike, metric: str, path: str | os.PathLike) -> None:
    """Draws a metric and the size of the model during training; needs matplotlib.

    Args:
        log: File that Chainer's ``LogReport`` writes.
        metric (str): Name of the metric in the file, such as
            ``'validation/main/accuracy'``.
        path: Path of the picture; the ending gives the format.

    Raises:
        OSError: If the log cannot be read.
        ValueError: If the file is not such a log, or lacks the metric or the reports of
            a compression.
    """
    with open(log, encoding="utf-8") as file:
        entries = _checked(file.read(), log)
    names = {name for entry in entries for name in entry}
    sizes = [n for n in ("compress/sparsity", "compress/bits") if n in names]
    for name in (metric, *(sizes or ["compress/sparsity"])):
        if name not in names:
            raise ValueError(
                f"{os.fspath(log)} has no {name!r}; it has"
                f" {printable(', '.join(sorted(names)))}"
            )
    figure = new_figure((7, 4.5), "drawing a compression")
    above = figure.subplots()
    _line(above, entries, metric, "C0")
    above.set_xlabel("iteration")
    for number, name in enumerate(sizes):
        beside = above.twinx()
        # A second scale is drawn outside the first.
        beside.spines["right"].set_position(("axes", 1 + 0.16 * number))
        _line(beside, entries, name, f"C{number + 1}", drawstyle="steps-post")
        beside.set_ylim(0, 1 if name == "compress/sparsity" else 33)
    write_picture(path, figure, dpi=120)


def _checked(text: str, log: str | os.PathLike) -> list[dict[str, float]]:
    """Returns the entries of a log of Chainer's."""
    what = f"{os.fspath(log)} is not a log of LogReport"
    try:
        entries = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{what}: it holds {shown(entries)} instead of entries")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or "iteration" not in entry:
            raise ValueError(f"{what}: entry {number} is {shown(entry)}")
        for name, value in entry.items():
            # A loss may have been infinite.
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(
                    f"{what}: {shown(name)} of entry {number} is {shown(value)}, which"
                    f" is no number"
                )
    return entries


def _line(axis: Any, entries: list, name: str, color: str, **style: Any) -> None:
    points = [(each["iteration"], each[name]) for each in entries if name in each]
    axis.plot(*zip(*points), color=color, **style)
    axis.set_ylabel(name, color=color)
    axis.tick_params(axis="y", labelcolor=color)


def plot_rounds(
    rounds: Sequence[tuple[float, float | None, bool]],
    base: float,
    limit: float,
    metric: str,
    sizes: Mapping[str, tuple[float, float]],
    path: str | os.PathLike,
) -> None:
    """Draws the rounds of a compression by trying, and the sizes of layers.

    Args:
        rounds: For each round the part of the dense bytes, the metric, ``None`` if it
            is not finite, and whether the round was kept.
        base: Metric of the dense model.
        limit: The worst metric within the budget.
        metric: Name of the metric.
        sizes: Bytes of each layer before and after, by path.
        path: Path of the picture; the ending gives the format.
    """
    height = max(4.0, 1 + 0.3 * len(sizes))
    figure = new_figure((11, height), "drawing a compression")
    from matplotlib import ticker

    left, right = figure.subplots(1, 2)
    left.plot([1.0], [base], "ks", label="dense")
    for is_kept, mark, word in ((True, "o", "kept"), (False, "x", "not kept")):
        points = [
            (part, m) for part, m, kept in rounds if kept == is_kept and m is not None
        ]
        if points:
            left.plot(*zip(*points), mark, label=word)
    left.axhline(limit, color="0.6", linestyle="--", label="budget")
    left.set_xscale("log")
    left.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5)))
    left.xaxis.set_major_formatter(lambda part, _: f"{part:g}")
    left.xaxis.set_minor_formatter(ticker.NullFormatter())
    left.set_xlabel("part of the dense bytes")
    left.set_ylabel(metric)
    left.legend()
    places = range(len(sizes))
    before, after = zip(*sizes.values())
    right.barh(places, before, color="0.85", label="dense")
    right.barh(places, after, color="C0", height=0.5, label="after")
    right.set_yticks(places, list(sizes))
    right.invert_yaxis()
    right.xaxis.set_major_locator(ticker.MaxNLocator(6))
    right.xaxis.set_major_formatter(ticker.EngFormatter("B"))
    right.set_xlabel("size of the weights")
    right.legend()
    write_picture(path, figure, dpi=120)
