"""LARS, as optimizer and as hook, against its equations."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from mixed_precision import LARS, LARSHook, MixedPrecision, to_float16


def equations(w, gradients, lr, momentum, eta, decay):
    v = np.zeros_like(w)
    for g in gradients:
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        rate = 1.0
        if norm_w > 0 and norm_g > 0:
            rate = eta * norm_w / (norm_g + decay * norm_w)
        v = momentum * v - lr * rate * (g + decay * w)
        w = w + v
    return w


def make_gradients(shape):
    return np.random.RandomState(0).normal(size=(5, *shape)).astype(np.float32)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("scale", [None, 1, 1024])
def test_equations(decay, scale):
    model = L.Linear(4, 3)
    if scale:
        to_float16(model)
    before = {p.name: p.array.astype(np.float64) for p in model.params()}
    optimizer = LARS(lr=0.5, momentum=0.8, eta=0.1, weight_decay=decay)
    if scale:
        optimizer = MixedPrecision(optimizer, loss_scale=scale)
    optimizer.setup(model)
    given = {p.name: make_gradients(p.shape).astype("e") for p in model.params()}
    for step in range(5):
        for p in model.params():
            p.grad = (given[p.name][step] * (scale or 1)).astype(p.dtype)
            p._loss_scale = scale
        optimizer.update()
    for path, p in model.namedparams():
        array = p.array
        if scale:
            array = optimizer._masters.by_path()[path]
        gradients = given[p.name].astype(np.float64)
        expected = equations(before[p.name], gradients, 0.5, 0.8, 0.1, decay)
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)


def test_hook_is_the_optimizer():
    weights = []
    for with_hook in (False, True):
        np.random.seed(0)
        model = L.Linear(4, 3)
        if with_hook:
            optimizer = chainer.optimizers.MomentumSGD(0.5, 0.8).setup(model)
            optimizer.add_hook(LARSHook(0.1, 0.01))
        else:
            optimizer = LARS(0.5, 0.8, 0.1, 0.01).setup(model)
        for g in make_gradients((3, 4)):
            model.W.grad, model.b.grad = g.copy(), g[:, 0].copy()
            optimizer.update()
        weights.append(model.W.array)
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("of_rule", [False, True])
def test_hook_knows_the_loss_scale_of_chainer(of_rule):
    weights = []
    for scale in (None, 1024.0):
        model = L.Linear(3, 2, nobias=True, initialW=8)
        optimizer = chainer.optimizers.SGD(0.5).setup(model)
        (model.W.update_rule if of_rule else optimizer).add_hook(LARSHook(0.25, 0.1))
        model.W.grad = np.full((2, 3), 100 * (scale or 1), np.float32)
        model.W._loss_scale = scale
        optimizer.update()
        weights.append(model.W.array)
    np.testing.assert_allclose(*weights, rtol=1e-6)
    # 8 - 0.5 * 0.25 * |w|, as the gradient is in the direction of the weights.
    np.testing.assert_allclose(weights[0], 7, rtol=1e-6)


def test_large_float16_norms_do_not_overflow():
    model = to_float16(L.Linear(100, 100, nobias=True, initialW=100))
    model.W.grad = np.full((100, 100), 1000, np.float16)
    rule, param = None, model.W
    LARSHook(eta=1.0)(rule, param)
    np.testing.assert_allclose(param.grad, 100, rtol=1e-3)


@pytest.mark.parametrize("gradient, scale", [(1e-8, 1024.0), (60000.0, None)])
def test_rates_need_not_fit_into_float16(gradient, scale):
    """|w| / |g| is 1e8, which float16 has not, and 1.7e-5, of which eta is 1e-3."""
    model = to_float16(L.Linear(10, 10, nobias=True, initialW=1))
    optimizer = chainer.optimizers.SGD(0.5)
    optimizer.use_fp32_update()
    optimizer.setup(model)
    if scale is not None:
        optimizer.set_loss_scale(scale)
    optimizer.add_hook(LARSHook(eta=0.001))
    model.W.grad = np.full((10, 10), gradient * (scale or 1), np.float16)
    model.W.grad[0, 0] = 0
    model.W._loss_scale = scale
    optimizer.update()
    updated = model.W.update_rule._fp32_param.array
    assert updated[0, 0] == 1
    step = 0.5 * 0.001 * 10 / np.sqrt(99)
    # What float16 makes of the gradient is its own business.
    np.testing.assert_allclose(1 - updated[1:], step, rtol=0.1)
