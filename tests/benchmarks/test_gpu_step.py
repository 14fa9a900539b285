"""The table of the benchmark of steps on a GPU, from times that are given."""

import sys

import chainer
import pytest

from benchmarks import gpu_step
from benchmarks.common.results import Result


class Worker:
    """Trains in no time, but says otherwise."""

    def __init__(self, seconds, losses):
        self._seconds, self._losses = iter(seconds), losses

    def send(self, method, name, precision, n):
        assert (method, name) == ("first_losses", "vgg16")
        self._n = n

    def receive(self):
        return self._losses[: self._n]

    def call(self, method):
        assert method == "seconds"
        return next(self._seconds)


def workers(losses):
    return {
        gpu_step.CUDNN: Worker([0.03, 0.02, 0.04], losses),
        gpu_step.TORCH: Worker([0.01, 0.01, 0.02], [2.5, 2.0]),
    }


def test_rows(tmp_path):
    result = Result("gpu_step", tmp_path / "result.txt")
    gpu_step.compare(result, "vgg16", gpu_step.FLOAT32, workers([2.5, 2.01]), 3)
    result.save()
    title, ours, torches = (tmp_path / "result.txt").read_text().splitlines()[:3]
    assert title.startswith("VGG16, 32 x 32 pixels, batch 256, float32")
    assert ours.split() == [
        *gpu_step.CUDNN.split(),
        *("30.00", "(20.00..40.00)", "2.00", "(2.00..3.00)"),
    ]
    assert torches.split()[-2:] == ["1.00", "(1.00..1.00)"]


def test_other_losses_are_refused(tmp_path):
    result = Result("gpu_step", tmp_path / "result.txt")
    with pytest.raises(SystemExit, match="trains another vgg16"):
        gpu_step.compare(result, "vgg16", gpu_step.FLOAT32, workers([2.6, 2.0]), 3)


def test_without_a_gpu_the_command_names_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(chainer.backends.cuda, "available", False)
    monkeypatch.setattr(sys, "argv", ["gpu_step"])
    with pytest.raises(SystemExit):
        gpu_step.main()
    assert "a GPU and CuPy are needed" in capsys.readouterr().err
