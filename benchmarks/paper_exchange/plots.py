"""The figures, after those of Oyama et al."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper_exchange.curves import Curve, Curves
from benchmarks.paper_exchange.experiments import (
    CAFFENET,
    EIGHT_NODES,
    EIGHT_NODES_ONE_LEVEL,
    FLOAT,
    FP8,
    GRADIENT,
    ONE_LEVEL,
    QUICK,
    SLOW,
)
from benchmarks.paper_exchange.look import LIMIT, SHOWN, Look, density, normalized

#: Ways that the panels of accuracy show.
FIG_8 = (FLOAT, FP8, "fp8, 1e-4", "fp8, 1e-3", GRADIENT)
FIG_11 = (FLOAT, FP8, ONE_LEVEL, EIGHT_NODES, EIGHT_NODES_ONE_LEVEL)
FIG_13 = (FLOAT, FP8)
#: Least number of elements of a distribution.
MANY = 50


def draw(folder: Path, curves: Curves, look: Look) -> None:
    """Draws all figures into a folder.

    Args:
        folder: Folder of the pictures.
        curves: Curves of the runs.
        look: Weights and gradients during the training of CaffeNet.
    """
    _draw_distributions(folder / "fig01.png", look)
    _draw_curves(folder / "fig08.png", [(CAFFENET, FIG_8)], curves)
    _draw_histograms(folder / "fig09.png", look)
    _draw_matrices(folder / "fig10.png", look)
    _draw_curves(folder / "fig11.png", [(CAFFENET, FIG_11)], curves)
    _draw_quantiles(folder / "fig12.png", curves[CAFFENET, FP8][0])
    _draw_curves(folder / "fig13.png", [(QUICK, FIG_13), (SLOW, FIG_13)], curves)


def _panels(rows: int, height: float = 4.5) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, height * rows), layout="constrained")
    return figure, figure.subplots(rows, squeeze=False)[:, 0]


def _draw_curves(
    path: Path, panels: Sequence[tuple[str, Sequence[str]]], curves: Curves
) -> None:
    figure, all_axes = _panels(len(panels))
    for axes, (task, ways) in zip(all_axes, panels):
        for way in ways:
            # The first seed, which all ways have.
            curve = curves[task, way][0]
            (line,) = axes.plot(curve.steps, curve.accuracies, label=way)
            best = int(np.argmax(curve.accuracies))
            axes.plot(curve.steps[best], curve.best, "*", color=line.get_color(), ms=10)
        axes.set(title=task, xlabel="step", ylabel="top-1 accuracy [%]")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=90)


def _draw_distributions(path: Path, look: Look) -> None:
    figure, (axes,) = _panels(1)
    colors = _layer_colors(look.gradients)
    for name, gradient in sorted(look.gradients.items()):
        if np.unique(gradient).size > MANY:
            axes.plot(*density(gradient), **_style(name, colors))
    axes.set(xlabel="log10 |gradient|", ylabel="density, relative to its maximum")
    _add_legend(axes)
    figure.savefig(path, dpi=90)


def _draw_histograms(path: Path, look: Look) -> None:
    figure, (axes,) = _panels(1)
    for name, values in look.shown().items():
        axes.hist(normalized(values), 81, range=(-1, 1), histtype="step", label=name)
    axes.set(xlabel=f"relative to the {LIMIT} quantile", ylabel="elements")
    axes.legend()
    figure.savefig(path, dpi=90)


def _draw_matrices(path: Path, look: Look) -> None:
    figure, all_axes = _panels(3, 2.5)
    for axes, (name, values) in zip(all_axes, look.shown().items()):
        # Rows are inputs, as in the paper.
        matrix = values.reshape(len(values), -1).T
        limit = np.quantile(np.abs(matrix), LIMIT)
        axes.imshow(matrix, "PiYG_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set(title=f"{SHOWN.strip('/')}: {name}", ylabel="input", xlabel="filter")
    figure.savefig(path, dpi=90)


def _draw_quantiles(path: Path, curve: Curve) -> None:
    figure, (axes,) = _panels(1)
    colors = _layer_colors(curve.quantiles)
    for name, found in sorted(curve.quantiles.items()):
        axes.semilogy(curve.quantile_steps, found, marker=".", **_style(name, colors))
    axes.set(xlabel="step", ylabel="q")
    _add_legend(axes)
    figure.savefig(path, dpi=90)


def _add_legend(axes: Axes) -> None:
    """Adds a legend beside the axes, with lines that are long enough for dashes."""
    place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(fontsize=7, handlelength=3.5, **place)


def _layer_colors(names: Iterable[str]) -> dict[str, str]:
    """Returns a color for each layer of some parameters."""
    layers = sorted({name.split("/")[1] for name in names})
    return {layer: f"C{i}" for i, layer in enumerate(layers)}


def _style(name: str, colors: dict[str, str]) -> dict[str, str]:
    """Returns the style of a parameter's line: biases are dashed."""
    _, layer, kind = name.split("/")
    style = "--" if kind == "b" else "-"
    return {"color": colors[layer], "linestyle": style, "label": f"{layer}/{kind}"}
