"""Parameters and gradients that mixed precision refuses, and why."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

from mixed_precision import DynamicLossScale, MixedPrecision, float32_loss, to_float16
from tests.support.mixed_precision import make_model


@pytest.mark.parametrize("size", [None, 4])
def test_copies_with_one_array_are_refused(size):
    layer = L.Linear(size, 4)
    model = chainer.ChainList(layer, layer.copy())
    optimizer = MixedPrecision(optimizers.SGD())
    with pytest.raises(ValueError, match="/0/[Wb] and /1/[Wb] are copies with one"):
        optimizer.setup(model)
    optimizer.setup(chainer.ChainList(layer, layer.copy(mode="init")))


class TestScaleOfGradients:
    def make(self, **options):
        model = make_model(np.float16)
        return model, MixedPrecision(optimizers.SGD(), **options).setup(model)

    def loss(self, model):
        x, t = np.ones((4, 5), np.float16), np.zeros(4, np.int32)
        model.cleargrads()
        return float32_loss(F.softmax_cross_entropy)(model(x), t)

    def test_by_chainer(self):
        model, optimizer = self.make(loss_scale=DynamicLossScale(256))
        self.loss(model).backward(loss_scale=float(optimizer.loss_scale))
        optimizer.update()
        assert optimizer.t == 1

    def test_missing(self):
        model, optimizer = self.make(loss_scale=256)
        self.loss(model).backward()
        with pytest.raises(ValueError, match="not scaled, but the loss scale is 256"):
            optimizer.update()

    def test_another_one(self):
        model, optimizer = self.make(loss_scale=256)
        self.loss(model).backward(loss_scale=16)
        with pytest.raises(ValueError, match=r"scaled by \[16.0\], but .* is 256"):
            optimizer.update()

    def test_forget_does_not_pass_it_on(self):
        model, optimizer = self.make(loss_scale=256)
        x, t = np.ones((4, 5), np.float16), np.zeros(4, np.int32)
        x = chainer.Variable(x)
        y = model[2](model[1](F.forget(model[0], x)))
        model.cleargrads()
        optimizer.backward(float32_loss(F.softmax_cross_entropy)(y, t))
        assert model[0].W._loss_scale is None
        scaled = model[0].W.grad.astype("f")
        before = optimizer.target[0].W.array.astype("f")
        optimizer.update()
        expected = (before - np.float32(0.01) * (scaled / 256)).astype("e")
        np.testing.assert_array_equal(model[0].W.array, expected)

    def test_float16_loss(self):
        model, optimizer = self.make(loss_scale=256)
        with pytest.raises(TypeError, match="compute it in float32"):
            optimizer.backward(F.sum(model(np.ones((4, 5), np.float16))))


def test_integer_parameters():
    link = chainer.Link()
    with link.init_scope():
        link.table = chainer.Parameter(np.arange(3))
    with pytest.raises(TypeError, match="/table is of dtype int"):
        MixedPrecision(optimizers.SGD()).setup(link)
    with pytest.raises(TypeError, match="/table is of dtype int"):
        to_float16(link)


def test_optimizers_with_an_update_or_a_scale_of_their_own():
    class WarmsUp(optimizers.SGD):
        def update(self, lossfun=None, *args, **kwds):
            super().update(lossfun, *args, **kwds)

    with pytest.raises(TypeError, match="WarmsUp has an update of its own"):
        MixedPrecision(WarmsUp())
    scaled = optimizers.SGD()
    scaled.set_loss_scale(4)
    with pytest.raises(ValueError, match="loss scale of its own"):
        MixedPrecision(scaled)
