"""What float16 would lose, counted."""

import json
from types import SimpleNamespace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import (
    GradientReport,
    GradientStatistics,
    MixedPrecision,
    float32_loss,
    to_float16,
)
from mixed_precision.exponent_histogram import ExponentHistogram


def make_trainer(tmp_path, extension, optimizer, model):
    rng = np.random.RandomState(0)
    dtype = next(model.params()).dtype
    data = [(x.astype(dtype), np.int32(0)) for x in rng.normal(size=(8, 4))]
    lossfun = float32_loss(F.softmax_cross_entropy)
    updater = chainer.training.StandardUpdater(
        chainer.iterators.SerialIterator(data, 4, shuffle=False),
        optimizer,
        loss_func=lambda x, t: lossfun(model(x), t),
    )
    trainer = chainer.training.Trainer(updater, (4, "iteration"), out=str(tmp_path))
    trainer.extend(extension, trigger=(2, "iteration"))
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("activations", [False, True])
def test_extension_in_mixed_precision(tmp_path, activations):
    model = to_float16(Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 3)))
    optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=256).setup(model)
    extension = GradientStatistics(activations=activations, plot=activations)
    make_trainer(tmp_path, extension, optimizer, model).run()
    for iteration in (2, 4):
        path = tmp_path / f"gradient_statistics_iter_{iteration}"
        if activations:
            assert path.with_suffix(".png").stat().st_size > 1000
        report = json.loads(path.with_suffix(".json").read_text())
        assert report["scale"] == 256
        assert set(report["parameters"]["each"]) == {"/0/W", "/0/b", "/2/W", "/2/b"}
        total = report["parameters"]["total"]
        assert total["n"] == 5 * 4 + 5 + 5 * 3 + 3
        assert sum(total["exponents"].values()) <= total["n"]
        assert total["before"]["below_normal"] >= total["after"]["below_normal"]
        names = set(report["activations"]["each"])
        if activations:
            relu = report["activations"]["each"]["layer 1: ReLU"]
            # Two iterations since the last report, of 4 samples.
            assert relu["n"] == 2 * 4 * 5
        else:
            assert not names


def test_extension_in_float32(tmp_path):
    """It tells beforehand what a scale would do."""
    model = Divisible(L.Linear(4, 5), L.Linear(5, 3))
    optimizer = chainer.optimizers.SGD().setup(model)
    extension = GradientStatistics(scale=1024, filename="report", plot=False)
    make_trainer(tmp_path, extension, optimizer, model).run()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["scale"] == 1024
    assert not (tmp_path / "report.png").exists()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_extension_with_the_loss_scale_of_chainer(tmp_path, dtype):
    """Its update divides float32 gradients in place, and copies of float16 ones."""
    safe_scales = set()
    for loss_scale in (1, 1024):
        model = Divisible(L.Linear(4, 3, initialW=0.1))
        if dtype == np.float16:
            to_float16(model)
        optimizer = chainer.optimizers.SGD()
        optimizer.use_fp32_update()
        optimizer.setup(model).set_loss_scale(loss_scale)
        extension = GradientStatistics(scale=1, filename="report", plot=False)
        make_trainer(tmp_path, extension, optimizer, model).run()
        report = json.loads((tmp_path / "report.json").read_text())
        safe_scales.add(report["largest_safe_scale"])
    assert len(safe_scales) == 1


def test_extension_after_a_step_that_chainer_skipped(tmp_path):
    """Then the gradients are as they were."""
    safe_scales = set()
    for loss_scale in (1.0, 1024.0):
        model = L.Linear(4, 3)
        optimizer = chainer.optimizers.SGD().setup(model)
        optimizer.loss_scaling()
        optimizer._loss_scale = loss_scale
        model.W.grad = np.full((3, 4), 0.25 * loss_scale, np.float32)
        model.b.grad = np.full(3, np.inf, np.float32)
        for param in model.params():
            param._loss_scale = loss_scale
        with pytest.warns(UserWarning, match="Non finite number found"):
            optimizer.update()
        assert not optimizer.is_safe_to_update()
        updater = SimpleNamespace(get_optimizer={"main": optimizer}.get)
        extension = GradientStatistics(scale=1, filename="report", plot=False)
        extension(SimpleNamespace(updater=updater, out=str(tmp_path)))
        report = json.loads((tmp_path / "report.json").read_text())
        safe_scales.add(report["largest_safe_scale"])
    assert len(safe_scales) == 1


def test_largest_safe_scale():
    report = GradientReport()
    assert report.largest_safe_scale == 1
    report.parameters["/W"] = ExponentHistogram()
    report.parameters["/W"].add(np.array([0.75, 2.0**-30], np.float32))
    scaled = 0.75 * report.largest_safe_scale
    assert 2.0**13 <= scaled < 2.0**14


@pytest.mark.parametrize("scale", [0, -1, np.inf, np.nan])
def test_bad_scale(scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        GradientStatistics(scale=scale)
