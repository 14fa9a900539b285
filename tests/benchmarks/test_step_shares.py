"""Phases of training steps in float32 and in mixed precision."""

import itertools
import sys

import chainer
import numpy as np
import pytest

from benchmarks import step_shares
from benchmarks.against_torch.models import Workload
from benchmarks.common.perceptron import minibatch, mlp
from benchmarks.step_shares import MixedTrainer, line_of, measure

TINY = Workload(
    "a tiny perceptron",
    lambda: mlp(16, 3),
    lambda: minibatch(16, 8),
    lambda: chainer.optimizers.MomentumSGD(0.1),
    has_dropout=False,
)


def test_every_class_has_the_seconds_of_its_phases():
    ticks = itertools.count()
    found = measure(TINY, 3, lambda: next(ticks))
    assert found == {
        "float32": [[1, 1, 1]] * 3,
        "mixed precision": [[1, 1, 1]] * 3,
    }


def test_both_classes_learn_the_same():
    losses = [
        make(TINY, lambda: 0.0).first_losses(20)
        for make in step_shares.TRAINERS.values()
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    assert losses[1][-1] < 0.5 * losses[1][0]
    trainer = MixedTrainer(TINY, lambda: 0.0)
    assert {p.dtype.name for p in trainer.model.params()} == {"float16"}


def test_a_line_has_shares_of_medians():
    line = line_of("mixed", [[1, 2, 1], [2, 2, 6], [1, 1, 2]])
    name, ms, *shares, spread = line.split()
    assert (name, ms) == ("mixed", "4000.0")
    assert shares == ["25.0%", "25.0%", "50.0%"]
    assert spread == "(25.0..60.0)"


def test_the_command_writes_a_result(tmp_path, monkeypatch):
    path = tmp_path / "result.txt"
    monkeypatch.setitem(step_shares.WORKLOADS, "tiny", TINY)
    monkeypatch.setattr(step_shares, "command", lambda before: "the command")
    options = ["--models", "tiny", "--rounds", "1", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["step_shares", *options])
    step_shares.main()
    lines = path.read_text().splitlines()
    assert "a tiny perceptron, MomentumSGD" in lines
    for line in lines[-2:]:
        shares = [float(word[:-1]) for word in line.split() if word.endswith("%")]
        assert len(shares) == 3
        assert sum(shares) == pytest.approx(100, abs=0.2)
