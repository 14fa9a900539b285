"""Momentum SGD in float16, against its equations."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from mixed_precision import MixedPrecision, MomentumSGD16, to_float16


def equations(w, gradients, lr, momentum):
    """Stored in float16, computed in float32."""
    w, g = w.astype("e"), np.zeros(w.shape, "e")
    lr, momentum = np.float32(lr), np.float32(momentum)
    for gradient in gradients:
        g = (momentum * g.astype("f") + gradient.astype("f")).astype("e")
        w = (w.astype("f") - lr * g.astype("f")).astype("e")
    return w


@pytest.mark.parametrize("scale", [None, 1, 4096])
@pytest.mark.parametrize("hook_of", [None, "optimizer", "rule"])
def test_equations(scale, hook_of):
    model = to_float16(L.Linear(40, 30))
    before = model.W.array.copy()
    optimizer = MomentumSGD16(0.03, 0.8)
    if scale:
        optimizer = MixedPrecision(optimizer, loss_scale=scale)
    optimizer.setup(model)
    if hook_of == "optimizer":
        optimizer.add_hook(lambda opt: None, name="nothing", timing="post")
    if hook_of == "rule":
        model.W.update_rule.add_hook(lambda rule, param: None, name="nothing")
    rng = np.random.RandomState(0)
    gradients = rng.normal(size=(6, 30, 40)).astype("e")
    for gradient in gradients:
        model.W.grad = gradient * np.float16(scale or 1)
        model.W._loss_scale = scale
        optimizer.update()
    expected = equations(before, gradients, 0.03, 0.8)
    np.testing.assert_array_equal(model.W.array, expected)
    rule = model.W.update_rule
    assert rule.state["g"].dtype == np.float16
    assert rule.scale == (rule.scale_for(scale) if scale else 1)
    if scale:
        assert not optimizer._masters.by_path()


def test_small_updates_are_not_lost():
    """Where momentum SGD in float16 stands still."""
    moved = {}
    for optimizer in (chainer.optimizers.MomentumSGD(2**-13), MomentumSGD16(2**-13)):
        model = to_float16(L.Linear(1, 1, nobias=True, initialW=0))
        model.W.array[...] = 2**-2
        optimizer.setup(model)
        for _ in range(200):
            model.W.grad = np.full((1, 1), 2.0**-12, np.float16)
            optimizer.update()
        moved[type(optimizer)] = model.W.update_rule.state
    velocity = moved[chainer.optimizers.MomentumSGD]["v"].item()
    accumulated = moved[MomentumSGD16]["g"].item()
    # Ten gradients' worth, if the momentum is 0.9.
    assert accumulated == pytest.approx(10 * 2**-12, rel=0.01)
    assert abs(velocity / 2**-13 / (10 * 2**-12) + 1) > 0.1


@pytest.mark.parametrize("scale", [2.0**20, 2.0**30])
def test_gradients_below_float16_are_not_lost(scale):
    """Nor when the scale changes on the way."""
    model = to_float16(L.Linear(1, 1, nobias=True, initialW=1))
    lr = 2.0**18
    optimizer = MixedPrecision(MomentumSGD16(lr, 0.5), loss_scale=scale).setup(model)
    weight, g = 1.0, 0.0
    for step in range(6):
        if step == 3:
            optimizer.set_loss_scale(scale / 4)
        gradient = 2.0**-30
        model.W.grad = np.full((1, 1), gradient * float(optimizer.loss_scale), "e")
        model.W._loss_scale = float(optimizer.loss_scale)
        optimizer.update()
        g = 0.5 * g + gradient
        weight -= lr * g
    assert model.W.array.item() == pytest.approx(weight, rel=1e-3)
    assert weight < 0.999


def test_accumulated_gradients_of_float16_go_on_in_float32(tmp_path):
    """In float16 they are kept scaled, in float32 they are not."""

    def make(dtype):
        model = L.Linear(2, 2, nobias=True, initialW=1)
        if dtype == np.float16:
            to_float16(model)
        optimizer = MixedPrecision(MomentumSGD16(0.5, 0.5), loss_scale=1024)
        return model, optimizer.setup(model)

    def update(model, optimizer):
        model.W.grad = np.full((2, 2), 1024 / 8, model.W.dtype)
        model.W._loss_scale = 1024
        optimizer.update()
        return model.W.array.copy()

    model, optimizer = make(np.float16)
    update(model, optimizer)
    chainer.serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    expected = update(model, optimizer)
    model, optimizer = make(np.float32)
    model.W.array[...] = 1 - 0.5 / 8
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
    np.testing.assert_array_equal(update(model, optimizer), expected)
    assert model.W.update_rule.scale == 1


def test_accumulated_gradients_stay_finite():
    model = to_float16(L.Linear(1, 1, nobias=True, initialW=1))
    optimizer = MixedPrecision(MomentumSGD16(1e-9, 0.999), loss_scale=1).setup(model)
    optimizer.momentum = 0.9999
    for _ in range(9000):
        model.W.grad = np.full((1, 1), 65504, "e")
        optimizer.update()
    assert np.isfinite(model.W.update_rule.state["g"].item())


def test_accumulated_gradients_stay_finite_without_mixed_precision():
    """Those of infinite gradients do not."""
    model = to_float16(L.Linear(1, 1, nobias=True, initialW=1))
    optimizer = MomentumSGD16(1e-4, 0.9).setup(model)
    for gradient, n_steps, expected in ((8000, 40, 65504), (np.inf, 1, np.inf)):
        for _ in range(n_steps):
            model.W.grad = np.full((1, 1), gradient, "e")
            optimizer.update()
        assert model.W.update_rule.state["g"].item() == expected
