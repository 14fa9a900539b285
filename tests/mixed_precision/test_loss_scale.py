"""The scale of the loss: which can be one, when it changes, what is resumed."""

import chainer
import numpy as np
import pytest
from chainer import optimizers

from mixed_precision import DynamicLossScale, MixedPrecision, StaticLossScale
from tests.support.mixed_precision import give_gradients, make_model, pair


def test_overflow_at_the_smallest_scale_names_the_parameters():
    optimizer, reference = pair(optimizers.SGD, loss_scale=DynamicLossScale(4))
    for scale in (4, 2):
        give_gradients(optimizer, reference, 0)
        optimizer.target[2].W.grad[...] = np.inf
        assert float(optimizer.loss_scale) == scale
        optimizer.update()
    give_gradients(optimizer, reference, 0)
    optimizer.target[2].W.grad[...] = np.inf
    with pytest.raises(FloatingPointError, match=r"scale, 1: /2/W\. The scale"):
        optimizer.update()


@pytest.mark.parametrize(
    "saved, resumed, scale",
    [
        (StaticLossScale(65536), StaticLossScale(1024), 1024),
        (StaticLossScale(65536), DynamicLossScale(4), 65536),
        (DynamicLossScale(65536), StaticLossScale(1024), 1024),
        (DynamicLossScale(2), DynamicLossScale(2**16, minimum=16), 16),
        (DynamicLossScale(2**20), DynamicLossScale(4, maximum=2**16), 2**16),
        (StaticLossScale(1024), StaticLossScale(1000), 1000),
        (StaticLossScale(1000), DynamicLossScale(4), 512),
    ],
)
def test_resumes_with_another_loss_scale(tmp_path, saved, resumed, scale):
    def make(loss_scale):
        optimizer = MixedPrecision(optimizers.SGD(), loss_scale=loss_scale)
        return optimizer.setup(make_model(np.float16))

    chainer.serializers.save_npz(tmp_path / "optimizer.npz", make(saved))
    optimizer = make(resumed)
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
    assert float(optimizer.loss_scale) == scale


def test_overflows_at_another_static_scale_do_not_count(tmp_path):
    failing = StaticLossScale(65536)
    for _ in range(StaticLossScale.patience - 1):
        failing.overflowed(["/0/W"])
    chainer.serializers.save_npz(tmp_path / "scale.npz", failing)
    smaller, same = StaticLossScale(1024), StaticLossScale(65536)
    for loss_scale in (smaller, same):
        chainer.serializers.load_npz(tmp_path / "scale.npz", loss_scale)
    smaller.overflowed(["/0/W"])
    assert smaller.n_skipped == 1
    with pytest.raises(FloatingPointError, match="choose a smaller scale"):
        same.overflowed(["/0/W"])


@pytest.mark.parametrize("scale", [0, -2, float("nan"), float("inf")])
def test_scales_that_are_none(scale):
    for make in (StaticLossScale, DynamicLossScale):
        with pytest.raises(ValueError, match="must be positive and finite"):
            make(scale)
    with pytest.raises(ValueError, match="must be positive and finite"):
        MixedPrecision(optimizers.SGD(), loss_scale=scale)


@pytest.mark.parametrize("name", ["initial", "factor", "minimum", "maximum"])
def test_a_dynamic_scale_is_a_power_of_two(name):
    with pytest.raises(ValueError, match=f"{name} must be a power of two"):
        DynamicLossScale(**{name: 1000})


@pytest.mark.parametrize("scale", [2.0**127, 2.0**-127])
def test_scales_beyond_float32(scale):
    with pytest.raises(ValueError, match="must be from 2.*-126 to 2"):
        StaticLossScale(scale)


def test_arguments_that_make_no_scale():
    with pytest.raises(TypeError, match="scale must be a number"):
        StaticLossScale("1024")
    with pytest.raises(ValueError, match="not between the minimum 4"):
        DynamicLossScale(2, minimum=4)
    with pytest.raises(ValueError, match="growth_interval"):
        DynamicLossScale(growth_interval=0)
    with pytest.raises(ValueError, match="factor"):
        DynamicLossScale(factor=1)
