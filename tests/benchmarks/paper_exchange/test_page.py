"""The page has all findings, runs and figures."""

import re

import numpy as np
import pytest

from benchmarks.paper_exchange import page
from benchmarks.paper_exchange.curves import Origin
from benchmarks.paper_exchange.experiments import EXPERIMENTS, SMALL
from benchmarks.paper_exchange.look import Look
from benchmarks.paper_exchange.networks import CaffeNet
from tests.benchmarks.paper_exchange.test_findings import curves
from tests.support.processes import ROOT


@pytest.fixture
def look():
    """The weights of a new network, with gradients of many magnitudes."""
    np.random.seed(0)
    weights = {name: p.array for name, p in CaffeNet(24).namedparams()}
    random = np.random.RandomState(0)
    gradients = {
        name: (10 ** random.normal(-3, 1, w.shape)).astype("f")
        for name, w in weights.items()
    }
    return Look(300, weights, gradients)


def test_the_page(tmp_path, look):
    origin = Origin("python -m it --quick", "a machine", SMALL)
    page.write(tmp_path / "page", origin, curves(), look)
    text = (tmp_path / "page" / "README.md").read_text()
    assert "Written by `python -m it --quick`" in text
    assert "Computed on a machine." in text
    assert "The first 60 steps are in float32" in text
    assert "| CaffeNet | 288 | 64 | 0.005 | 0.0005 |" in text
    for number in page.CAPTIONS:
        assert f"![Fig. {number}](fig{number:02}.png)" in text
        assert (tmp_path / "page" / f"fig{number:02}.png").stat().st_size > 5000
    for (task, way), experiment in EXPERIMENTS.items():
        seeds = 2 if experiment.has_seeds else 1
        assert f"| {task} | {way} | {experiment.n_replicas} | {seeds} | 90.00 |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    # The tables of trainings, findings and runs: no cell has a bar.
    assert {line.count("|") for line in rows} == {6, 8}
    for name in re.findall(r"`(benchmarks/results/.*?)`", text):
        assert (ROOT / name).exists()
