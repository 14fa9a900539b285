"""Streamed weights in mixed precision, beside plain Chainer without a loss scale."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from chainer import optimizers

from divisible import Divisible, deferred_init
from divisible.streaming import Streamed
from mixed_precision import DynamicLossScale, MixedPrecision

RULES = {
    "SGD": lambda: optimizers.SGD(0.05),
    "MomentumSGD": lambda: optimizers.MomentumSGD(0.05),
    "Adam": lambda: optimizers.Adam(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
}
STREAMED = ("/0/W", "/1/W")
PLACES = {
    "none": ((), ()),
    "streamed": (STREAMED, ()),
    "resident": (("/2/W",), ()),
    "both": ((*STREAMED, "/2/W"), ()),
    "streamed, clipped": (STREAMED, (hooks.GradientClipping(0.2),)),
    "streamed, decayed": (STREAMED, (hooks.Lasso(0.01), hooks.GradientClipping(0.2))),
}


class AfterUpdate:
    """A hook that looks at weights after their update."""

    name, timing, call_for_each_param = "after", "post", True

    def __call__(self, rule, param):
        np.clip(param.array, -0.4, 0.4, out=param.array)


def train(rule, place, streamed, loss_scale=None):
    """Returns the weights after some updates."""
    with deferred_init(seed=0):
        layers = [L.EmbedID(10, 8), L.Linear(8, 6)]
        if streamed:
            layers = [Streamed(layer, segment=4) for layer in layers]
        model = Divisible(*layers, L.Linear(6, 3)).divide()
    optimizer = RULES[rule]()
    if loss_scale is not None:
        optimizer = MixedPrecision(optimizer, loss_scale=loss_scale)
    optimizer.setup(model)
    of_rules, of_optimizer = PLACES[place]
    for path, param in model.namedparams():
        if path in of_rules:
            param.update_rule.add_hook(hooks.WeightDecay(0.05))
            param.update_rule.add_hook(AfterUpdate())
    for hook in of_optimizer:
        optimizer.add_hook(hook)
    random = np.random.RandomState(1)
    for _ in range(5):
        x, t = random.randint(0, 10, 8), random.randint(0, 3, 8).astype("i")
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x, t)
    return model, optimizer


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_rules_and_hooks_see_gradients_that_are_not_scaled(rule, place):
    expected, _ = train(rule, place, streamed=False)
    # The order of some additions differs, and 1000 rounds.
    for scale in 1, 256, 1000, DynamicLossScale(256, growth_interval=2):
        model, _ = train(rule, place, True, scale)
        for (path, param), twin in zip(model.namedparams(), expected.params()):
            np.testing.assert_allclose(
                param.array, twin.array, rtol=1e-5, atol=1e-6, err_msg=path
            )


@pytest.mark.parametrize("place", ["none", "streamed"])
def test_gradients_stay_scaled(place):
    model, optimizer = train("SGD", place, True, 256)
    model.cleargrads()
    optimizer.backward(F.sum(model(np.arange(8))))
    before = {path: param.grad.copy() for path, param in model.namedparams()}
    # Of the sum of 8 samples' outputs, times the scale.
    np.testing.assert_array_equal(before["/2/b"], 8 * 256)
    optimizer.update()
    for path, param in model.namedparams():
        np.testing.assert_array_equal(param.grad, before[path])
        assert param._loss_scale == 256


def test_a_skipped_step_leaves_streamed_weights_alone():
    model, optimizer = train("Adam", "streamed", True, DynamicLossScale(256))
    before = [param.array.copy() for param in model.params()]
    model[2].W.grad[0, 0] = np.inf
    optimizer.update()
    assert optimizer.n_skipped == 1
    for param, array in zip(model.params(), before):
        np.testing.assert_array_equal(param.array, array)


def test_clipping_uses_the_norm_of_gradients_that_are_not_scaled():
    model, optimizer = train("SGD", "none", True, 256)
    random = np.random.RandomState(3)
    gradients = {}
    for path, param in model.namedparams():
        gradients[path] = random.normal(size=param.shape).astype("f")
        param.grad = gradients[path] * np.float32(256)
        param._loss_scale = 256
    squares = sum(float((g.astype("d") ** 2).sum()) for g in gradients.values())
    optimizer.add_hook(hooks.GradientClipping(0.5))
    before = {path: param.array.copy() for path, param in model.namedparams()}
    optimizer.update()
    assert optimizer.gradient_norm == pytest.approx(squares**0.5, rel=1e-6)
    for path, param in model.namedparams():
        step = 0.05 * 0.5 / squares**0.5 * gradients[path]
        np.testing.assert_allclose(param.array, before[path] - step, 1e-5, 1e-6)


@pytest.mark.parametrize("place", ["none", "streamed", "streamed, decayed"])
@pytest.mark.parametrize("rule", ["SGD", "MomentumSGD", "RMSprop"])
def test_without_a_gradient_momentum_and_hooks_go_on(rule, place):
    """Chainer's optimizers take zeros for a gradient that is not there."""
    trained = train(rule, place, streamed=False), train(rule, place, True, 256)
    for model, optimizer in trained:
        for _ in range(2):
            model.cleargrads()
            optimizer.update()
    (expected, _), (model, _) = trained
    for (path, param), twin in zip(model.namedparams(), expected.params()):
        np.testing.assert_allclose(param.array, twin.array, 1e-5, 1e-6, err_msg=path)
    assert model[0].W.grad is None
