"""A step does what Chainer's optimizer would do in float32, hooks included."""

import gc
import tracemalloc

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from chainer import optimizers

from divisible import Divisible
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from tests.support.mixed_precision import (
    HOOKS,
    N_STEPS,
    OPTIMIZERS,
    assert_equal,
    give_gradients,
    pair,
    update_both,
)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scale", [1, 1024])
def test_every_optimizer(make_optimizer, scale):
    optimizer, reference = pair(make_optimizer, loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)
    assert (optimizer.t, optimizer.n_skipped) == (N_STEPS, 0)


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize(
    "make_optimizer", [optimizers.MomentumSGD, optimizers.Adam, optimizers.AdaGrad]
)
@pytest.mark.parametrize("scale", [1, 2**14])
def test_every_hook(make_optimizer, name, scale):
    optimizer, reference = pair(make_optimizer, HOOKS[name], loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


@pytest.mark.parametrize("before", [[], [hooks.WeightDecay(0.5)]])
@pytest.mark.parametrize("scale", [1, 1000, 2**14])
def test_gradient_clipping(before, scale):
    """The norm is summed in another order, so that the last bit may differ."""
    clipping = [*before, hooks.GradientClipping(1.5), hooks.Lasso(0.01)]
    optimizer, reference = pair(optimizers.MomentumSGD, clipping, loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference, rtol=1e-6)


def test_clipping_leaves_small_gradients_alone():
    clipping = [hooks.GradientClipping(1e3)]
    optimizer, reference = pair(optimizers.SGD, clipping, loss_scale=2)
    give_gradients(optimizer, reference, 0)
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


def test_hooks_of_every_kind():
    """After the update, for one parameter only, with the optimizer as argument."""
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)

    def clip_weights(opt):
        for param in opt.target.params():
            np.clip(param.array, -0.3, 0.3, out=param.array)

    def replace_gradients(opt):
        for path, param in opt.target.namedparams():
            param.grad = None if path == "/0/W" else param.grad * 3

    for o in (optimizer, reference):
        o.add_hook(clip_weights, timing="post")
        o.add_hook(replace_gradients)
        o.target[2].W.update_rule.add_hook(hooks.WeightDecay(0.1))
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)
    optimizer.remove_hook("clip_weights")
    assert "clip_weights" not in optimizer._hookable._post_update_hooks


def test_parameters_with_rules_of_their_own():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)
    for o in (optimizer, reference):
        o.target[0].b.update_rule.hyperparam.lr = 0.5
        o.target[1].gamma.update_rule.enabled = False
        o.target[2].W.update_rule = optimizers.Adam().create_update_rule()
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
        if step == 1:
            for o in (optimizer, reference):
                o.target[0].disable_update()
        if step == 2:
            for o in (optimizer, reference):
                o.target[0].enable_update()
                o.lr = 0.3
    assert_equal(optimizer, reference)


def test_no_gradient_is_a_gradient_of_zero():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        if step == 2:
            optimizer.target[0].cleargrads()
            reference.target[0].cleargrads()
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


class Shared(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(3, 3)
            self.b = chainer.Chain(inner=self.a)


@pytest.mark.parametrize("make_optimizer", [optimizers.Adam, optimizers.SGD])
def test_a_parameter_that_gets_its_array_later(make_optimizer):
    """Its update rule counts the updates before, as Chainer's does."""
    found = []
    for wrap in (lambda each: each, lambda each: MixedPrecision(each, loss_scale=1)):
        model = Divisible(L.Linear(3, 2, nobias=True), L.Linear(None, 2, nobias=True))
        optimizer = wrap(make_optimizer()).setup(model)
        for step in range(4):
            model.cleargrads()
            if step == 2:
                model[1].W.initialize((2, 2))
                model[1].W.array[...] = 1
            for param in model.params(include_uninit=False):
                param.grad = np.ones_like(param.array)
            optimizer.update()
        found.append((model[1].W.array, model[1].W.update_rule.t))
    (one, n_one), (other, n_other) = found
    np.testing.assert_array_equal(one, other)
    assert n_one == n_other == 4


def test_shared_parameter_is_updated_once():
    model = to_float16(Shared())
    before = model.a.W.array.astype(np.float32)
    optimizer = MixedPrecision(optimizers.SGD(0.5), loss_scale=4).setup(model)
    optimizer.add_hook(hooks.WeightDecay(0.25))
    for param in model.params():
        param.grad = np.full_like(param.array, 4)
        param._loss_scale = 4
    optimizer.update()
    expected = (before - 0.5 * (1 + 0.25 * before)).astype(np.float16)
    np.testing.assert_array_equal(model.a.W.array, expected)
    assert model.a.W.update_rule.t == 1


def test_float64_parameters():
    with chainer.using_config("dtype", np.float64):
        model, twin = (L.Linear(4, 3, initialW=1) for _ in range(2))
    optimizer = MixedPrecision(optimizers.Adam(), loss_scale=2).setup(model)
    reference = optimizers.Adam().setup(twin)
    for step in range(N_STEPS):
        rng = np.random.RandomState(step)
        for param, same in zip(model.params(), twin.params()):
            same.grad = rng.normal(size=param.shape)
            param.grad = same.grad * 2
            param._loss_scale = 2
        update_both(optimizer, reference, step)
    np.testing.assert_array_equal(model.W.array, twin.W.array)
    assert model.W.array.dtype == np.float64


def test_eps_of_adam_below_float32():
    model = Divisible(L.Linear(2, 2, nobias=True))
    model[0].W.array = np.ones((2, 2))
    optimizer = MixedPrecision(optimizers.Adam(eps=1e-50), loss_scale=1).setup(model)
    model[0].W.grad = np.ones((2, 2))
    optimizer.update()
    assert (model[0].W.array < 1).all()


@pytest.mark.parametrize("make_optimizer", [optimizers.MomentumSGD, optimizers.Adam])
def test_no_array_is_allocated_after_the_first_step(make_optimizer):
    """Small objects of Python come and go, but nothing as large as a parameter."""
    n = 200
    model = to_float16(Divisible(*[L.Linear(n, n) for _ in range(5)]))
    optimizer = MixedPrecision(make_optimizer(), loss_scale=DynamicLossScale(4))
    optimizer.setup(model)
    optimizer.add_hook(hooks.GradientClipping(1.0))
    for param in model.params():
        param.grad = np.ones_like(param.array)
        param._loss_scale = 4
    for _ in range(3):
        optimizer.update()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            optimizer.update()
            after, peak = tracemalloc.get_traced_memory()
            # The smallest array of a parameter's size would be 80,000 bytes.
            assert peak - before < 20_000
        assert after - before < 20_000
    finally:
        tracemalloc.stop()


def test_copies_of_a_parameter_in_two_stages_of_a_rank():
    """Both are updated; the norm counts them once."""
    stages = [to_float16(Divisible(L.Linear(3, 3, initialW=1))) for _ in range(2)]
    optimizer = MixedPrecision(optimizers.MomentumSGD(0.5), loss_scale=4).setup(stages)
    for param in optimizer.target.params():
        param.grad = np.full(param.shape, 4, np.float16)
        param._loss_scale = 4
    optimizer.update()
    for stage in stages:
        np.testing.assert_array_equal(stage[0].W.array, np.full((3, 3), 0.5, "e"))
    assert optimizer.gradient_norm == pytest.approx(12**0.5)
    stages[0][0].W.grad[0, 0] = np.inf
    optimizer.update()
    assert (optimizer.t, optimizer.n_skipped) == (1, 1)
