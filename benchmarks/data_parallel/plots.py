"""Figures of accuracies and gradients, after those of Oyama et al."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data_parallel.distribution import relative
from benchmarks.data_parallel.simulated import (
    QUANTILE_EVERY,
    TEST_EVERY,
    Run,
    Task,
)

#: Runs that the panel of 4 replicas shows.
SHOWN = (
    "fp32",
    "int8",
    "e4m3",
    "Algorithm 1, 1e-5",
    "Algorithm 1, 1e-3",
    "Algorithm 1, no ratio",
    "fp32, lr x gain",
)
#: The parameters of the other panels, and how much of a matrix is shown.
LAYER, MATRIX, SIDE = "/conv2/W", "/fc1/W", 96


def draw(
    path: Path,
    small: Task,
    large: Task,
    runs: dict[str, list[Run]],
    of_large: dict[str, list[Run]],
    gradients: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
) -> None:
    """Draws all panels into a file.

    Args:
        path: Path of the picture.
        small: Settings of the training of 4 replicas.
        large: Settings of the training of 64 replicas.
        runs: Runs of 4 replicas by way, one for each seed.
        of_large: Runs of 64 replicas.
        gradients: Distributions of gradients, by parameter.
        weights: Weights, by parameter.
    """
    figure = Figure(figsize=(15, 9), layout="constrained")
    panels = figure.subplots(2, 3)
    _histograms(panels[0, 0], gradients)
    _shapes(panels[0, 1], gradients[LAYER], weights[LAYER])
    _matrix(panels[0, 2], relative(gradients[MATRIX], weights[MATRIX]))
    _quantiles(panels[1, 0], small, runs["Algorithm 1, 1e-5"][0])
    _curves(panels[1, 1], small, {name: runs[name] for name in SHOWN})
    _curves(panels[1, 2], large, of_large)
    figure.savefig(path, dpi=90)


def _histograms(axes: object, gradients: dict[str, np.ndarray]) -> None:
    for name, gradient in gradients.items():
        if gradient.ndim < 2:
            # Too few elements for a distribution.
            continue
        there = np.abs(gradient[gradient != 0])
        counts, edges = np.histogram(np.log10(there), bins=40)
        axes.plot((edges[1:] + edges[:-1]) / 2, counts / counts.max(), label=name[1:])
    decades = np.log10(57344 * 2.0**16)
    top = max(np.log10(np.abs(g).max()) for g in gradients.values())
    axes.axvspan(top - decades, top, color="0.92", label="decades of e5m2")
    axes.set(xlabel="log10 |gradient|", title="gradients (Fig. 1)")
    axes.legend(fontsize=7)


def _shapes(axes: object, gradient: np.ndarray, weights: np.ndarray) -> None:
    values = {"weights": weights, "gradient": gradient}
    values["ratio"] = relative(gradient, weights)
    for name, each in values.items():
        limit = np.quantile(np.abs(each), 0.99)
        counts, edges = np.histogram(each[np.abs(each) <= limit] / limit, bins=60)
        axes.plot((edges[1:] + edges[:-1]) / 2, counts / counts.max(), label=name)
    axes.set(xlabel="relative to the 0.99 quantile", title=f"{LAYER[1:]} (Fig. 9)")
    axes.legend()


def _matrix(axes: object, ratio: np.ndarray) -> None:
    with np.errstate(divide="ignore"):
        picture = np.log10(np.abs(ratio[:SIDE, :SIDE]))
    shown = axes.imshow(picture, vmin=np.percentile(picture[picture > -30], 5))
    axes.figure.colorbar(shown, ax=axes)
    title = f"log10 |ratio| of {MATRIX[1:]}, a part (Fig. 10)\nwhite: zero"
    axes.set(title=title)


def _quantiles(axes: object, task: Task, run: Run) -> None:
    for name, found in run.quantiles.items():
        steps = task.common + QUANTILE_EVERY * np.arange(len(found))
        axes.semilogy(steps, found, "o-", label=name[1:])
    axes.set(xlabel="step", title="q of parameters (Fig. 12)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7)


def _curves(axes: object, task: Task, runs: dict[str, list[Run]]) -> None:
    # Only seeds that all ways have: accuracies differ more between seeds.
    n_seeds = min(map(len, runs.values()))
    for name, each in runs.items():
        mean = np.mean([run.accuracies for run in each[:n_seeds]], axis=0)
        first = (task.common // TEST_EVERY + 1) * TEST_EVERY
        # A quick run has one test, which a line alone would not show.
        axes.plot(first + TEST_EVERY * np.arange(len(mean)), mean, ".-", label=name)
    figure = "Fig. 11" if task.n_replicas > 4 else "Fig. 8"
    title = f"{task.n_replicas} replicas ({figure})"
    axes.set(xlabel="step", ylabel="test accuracy [%]", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7)
