"""The page: a table of findings, a table of runs, and the figures."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.common.findings import as_markdown
from benchmarks.data_parallel.distribution import EPSILON
from benchmarks.data_parallel.simulated import QUANTILE_EVERY, TEST_EVERY
from benchmarks.paper_exchange import plots
from benchmarks.paper_exchange.curves import Curves, Origin
from benchmarks.paper_exchange.experiments import (
    EXPERIMENTS,
    FLOAT,
    NODE,
    TASKS,
    Scale,
)
from benchmarks.paper_exchange.findings import difference, findings
from benchmarks.paper_exchange.look import SHOWN, Look

TITLE = "# Figures 1 and 8 to 13 of Oyama et al. in small"
#: Titles and captions of the figures, by number.
TITLES = {
    1: "gradients",
    8: "epsilons, and the gradient itself",
    9: "histograms of a tensor",
    10: "matrices of a tensor",
    11: "two levels, and one all-reduce",
    12: "quantiles",
    13: "GoogLeNet",
}
CAPTIONS = {
    1: "Gradients of one replica of CaffeNet, by tensor. Densities are estimated by"
    " Gaussian kernels from the values between the 1 % and 99 % quantiles that are not"
    " zero. Dashed: biases.",
    8: "CaffeNet in float32, in fp8 with three epsilons, and in fp8 without the"
    " ratio to the weights. Stars are the best accuracies.",
    9: f"Weights, gradient and ratio of {SHOWN.strip('/')}. Magnitudes up to the 0.99"
    " quantile, relative to it.",
    10: f"Weights, gradient and ratio of {SHOWN.strip('/')} as matrices. Larger"
    " magnitudes are cut to the 0.99 quantile.",
    11: "CaffeNet with sums in two levels, and in one all-reduce, on 2 and on 8 nodes"
    " of 8 replicas.",
    12: "Quantiles of CaffeNet's tensors, with epsilon 1e-5. Dashed: biases of the"
    " layer with the same color.",
    13: "GoogLeNet with the quick policy and with the slow one.",
}


def write(folder: Path, origin: Origin, curves: Curves, look: Look) -> None:
    """Writes the page and its figures.

    Args:
        folder: Folder of the page.
        origin: Command of the curves, and where it ran.
        curves: Curves of all experiments.
        look: Weights and gradients during the training of CaffeNet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plots.draw(folder, curves, look)
    lines = [
        TITLE,
        "",
        f"Written by `{origin.command}`; do not edit.",
        "",
        *_setting(origin.scale),
        "",
        f"Computed on {origin.machine}.",
        "",
        "## Findings",
        "",
        *as_markdown(findings(curves, look)),
        "",
        *_elsewhere(),
        "",
        "## Runs",
        "",
        *_runs(curves),
        "",
        *(
            line
            for number, caption in CAPTIONS.items()
            for line in (
                f"## Fig. {number}: {TITLES[number]}",
                "",
                caption,
                "",
                f"![Fig. {number}](fig{number:02}.png)",
                "",
            )
        ),
    ]
    (folder / "README.md").write_text("\n".join(lines[:-1]) + "\n")


def _setting(scale: Scale) -> list[str]:
    tasks = {task: scale.task(EXPERIMENTS[task, FLOAT]) for task in TASKS}
    return [
        "Oyama, Nomura, Sato, Matsuoka: *Reducing Communication in Data-Parallel Deep"
        " Learning by Low-Precision Floating Point* (2017, in Japanese). They train"
        " CaffeNet and GoogLeNet with 16 classes of"
        " ILSVRC2012. Here networks of the same shape read scikit-learn's digits of 8 x"
        " 8 pixels: 997 to train, 800 to test. CaffeNet has 5 convolutions, and 3 fully"
        " connected layers with most of its parameters. GoogLeNet has 22 convolutions"
        " with most of its parameters, and 3 fully connected layers.",
        "",
        "| training | steps | samples | learning rate at first | weight decay |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {task.steps} | {task.batch} | {task.lr:g} |"
            f" {task.weight_decay:g} |"
            for name, task in tasks.items()
        ),
        "",
        f"Learning rates fall at the same parts of the training as in the paper. The"
        f" first {scale.common} steps are in float32 and common to all"
        f" ways. Then quantiles are renewed every {QUANTILE_EVERY} steps. Accuracies"
        f" are tested every {TEST_EVERY} steps. All parameters are coded, biases too.",
        "",
        f"Replicas are on nodes of {NODE}: 16 of them, or 64 in Fig. 11. They are"
        f" simulated in one process, with the bits of ranks"
        f" (`tests/mpi/data_parallel/test_oyama2017.py`). Epsilon is"
        f" {EPSILON:g} if nothing else is said. Momentum is 0.9. Dropout and local"
        f" response normalization are left out.",
    ]


def _elsewhere() -> list[str]:
    return [
        "Figures 3 to 7 are times. `benchmarks/results/data_parallel_exchange.txt` and"
        " `benchmarks/results/data_parallel_training.txt` have times on emulated hosts."
    ]


def _runs(curves: Curves) -> list[str]:
    lines = [
        "Best accuracies are means over the seeds. The difference is to float with the"
        " same seeds. The gain is the projection of the mean gradient on the exact"
        " one.",
        "",
        "| training | way | replicas | seeds | best, % | difference, points | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, way), experiment in EXPERIMENTS.items():
        found = curves[task, way]
        value, error = difference(curves, task, way)
        shown = f"{value:+.2f}" + (f" ({error:.2f})" if error else "")
        lines.append(
            f"| {task} | {way} | {experiment.n_replicas} | {len(found)} |"
            f" {statistics.mean(curve.best for curve in found):.2f} |"
            f" {'' if way == FLOAT else shown} |"
            f" {statistics.mean(curve.gain for curve in found):.2f} |"
        )
    return lines
