"""The figures of a run with one test of the accuracy."""

import matplotlib
import numpy as np

from benchmarks.data_parallel import plots
from benchmarks.data_parallel.simulated import Run, Task


def test_one_test_of_the_accuracy_can_be_seen(tmp_path, monkeypatch):
    seen = []

    def save(figure, path, **options):
        figure.draw_without_rendering()
        for axes in figure.axes:
            if "replicas" in axes.get_title():
                seen.extend(line.get_marker() for line in axes.get_lines())

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save)
    run = Run(accuracies=[50.0], quantiles={"/conv2/W": [1.0]})
    rng = np.random.RandomState(0)
    arrays = {
        "/conv2/W": rng.standard_normal((8, 4, 3, 3)).astype("f"),
        "/fc1/W": rng.standard_normal((9, 7)).astype("f"),
    }
    task = Task(common=20, steps=40)
    runs = {name: [run] for name in plots.SHOWN}
    picture = tmp_path / "picture.png"
    plots.draw(picture, task, task, runs, {"fp32": [run]}, arrays, arrays)
    # A panel of all ways, and one of float32.
    assert seen == ["."] * (len(plots.SHOWN) + 1)
