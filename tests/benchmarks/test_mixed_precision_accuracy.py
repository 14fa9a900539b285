"""The classes of training of the slides' table, and a row for each technique."""

import sys

import chainer
import numpy as np
import pytest

from benchmarks import mixed_precision_accuracy as benchmark
from benchmarks.mixed_precision_accuracy import BASE, MODES, TASKS, train
from mixed_precision import LARS, MixedPrecision, MomentumSGD16, to_float16


def types_of(mode):
    model = TASKS["CNN"].make()
    if MODES[mode].is_half:
        to_float16(model, keep=MODES[mode].keep)
    model(np.zeros((1, 1, 8, 8), np.float16 if MODES[mode].is_half else np.float32))
    link = model[0]
    types = getattr(link, "types", None)
    return link.W.dtype.name, types and (types.forward_math, types.backward_math)


@pytest.mark.parametrize("mode", MODES)
def test_modes_have_the_types_of_their_class(mode):
    dtype, sums = types_of(mode)
    expected = {
        "FP32": ("float32", None),
        "FP16": ("float16", ("float16", "float16")),
        "NVCaffe": ("float16", ("float16", "float32")),
        "mixed": ("float16", None),
    }[mode.split()[0]]
    assert (dtype, sums) == expected
    optimizer = MODES[mode].optimizer(TASKS["vanishing"])
    assert isinstance(optimizer, MixedPrecision) == ("+" in mode)
    kind = type(getattr(optimizer, "actual_optimizer", optimizer))
    assert kind is (
        LARS
        if "LARS" in mode
        else MomentumSGD16
        if "modified" in mode
        else chainer.optimizers.MomentumSGD
    )
    if isinstance(optimizer, MixedPrecision) and "dynamic" not in mode:
        scale = 512 if "512" in mode else 2**16 if "scale" in mode else 1
        assert float(optimizer.loss_scale) == scale


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns(mode):
    run = train(TASKS["MLP"], mode, seed=0, n_epochs=3)
    assert len(run.accuracies) == len(run.losses) == 3
    assert run.losses[-1] < 0.7 * run.losses[0]


def test_loss_scaling_saves_gradients_that_vanish():
    task = TASKS["vanishing"]
    lost, saved, base = (
        train(task, mode, seed=0, n_epochs=3).losses[-1]
        for mode in ("mixed + master", "mixed + master, scale", BASE)
    )
    assert saved == pytest.approx(base, rel=0.05)
    assert lost > 1.5 * base


def test_modes_are_drawn_differently():
    styles = [tuple(benchmark.style_of(mode).values()) for mode in MODES]
    assert len(set(styles)) == len(MODES)


def test_the_command_writes_a_table_and_curves(tmp_path, monkeypatch):
    output, picture = tmp_path / "result.txt", tmp_path / "picture.png"
    monkeypatch.setattr(benchmark, "command", lambda before: "the command")
    options = [
        *("--tasks", "MLP", "--modes", "mixed", "--seeds", "1", "--epochs", "3"),
        *("--output", str(output), "--plot", str(picture)),
    ]
    monkeypatch.setattr(sys, "argv", ["mixed_precision_accuracy", *options])
    benchmark.main()
    lines = output.read_text().splitlines()
    assert "  mixed                           class mixed, update in FP16" in lines
    assert [line.split()[0] for line in lines[-2:]] == ["FP32", "mixed"]
    assert picture.read_bytes().startswith(b"\x89PNG")
