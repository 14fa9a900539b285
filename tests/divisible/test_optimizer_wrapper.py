"""Optimizers that stand where others stood."""

import inspect

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizer import GradientMethod, Optimizer
from chainer.training import extensions

from divisible.optimizer_wrapper import OptimizerWrapper, has_skipped


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_hyperparameter_that_is_set_reaches_the_innermost_optimizer(depth):
    sgd = optimizer = chainer.optimizers.MomentumSGD(0.5)
    link = L.Linear(2, 2)
    for _ in range(depth):
        optimizer = OptimizerWrapper(optimizer)
    sgd.setup(link)
    optimizer.lr = 0.25
    assert sgd.lr == optimizer.lr == link.W.update_rule.hyperparam.lr == 0.25
    assert "lr" not in vars(optimizer)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_the_optimizer_does_not_have_is_the_wrapper_s_own(depth):
    sgd = optimizer = chainer.optimizers.SGD()
    for _ in range(depth):
        optimizer = OptimizerWrapper(optimizer)
    optimizer.note = 3
    assert optimizer.note == 3
    assert not hasattr(sgd, "note")


def test_a_schedule_of_the_rate_trains_as_with_the_optimizer_itself():
    def train(wrap):
        np.random.seed(0)
        link = L.Linear(3, 2)
        sgd = chainer.optimizers.SGD(1.0).setup(link)
        shift = extensions.ExponentialShift("lr", 0.5, optimizer=wrap(sgd))
        shift.initialize(None)
        for _ in range(3):
            link.W.grad = np.ones_like(link.W.array)
            sgd.update()
            shift(None)
        return link.W.array

    twice = train(lambda sgd: OptimizerWrapper(OptimizerWrapper(sgd)))
    np.testing.assert_array_equal(twice, train(lambda sgd: sgd))


@pytest.mark.filterwarnings("ignore:Non finite number")
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_update_that_chainer_skips_is_known_through_wrappers(depth):
    link = L.Linear(2, 2)
    sgd = optimizer = chainer.optimizers.SGD().setup(link)
    sgd.loss_scaling()
    for _ in range(depth):
        optimizer = OptimizerWrapper(optimizer)
    assert not has_skipped(optimizer)
    for value, expected in ((1.0, False), (np.nan, True), (1.0, False)):
        for param in link.params():
            param.grad = np.full_like(param.array, value)
        sgd.update()
        assert has_skipped(optimizer) == expected


#: What Chainer's optimizers have, from Chainer's own classes.
NAMES = sorted(
    name
    for name in {*vars(Optimizer), *vars(GradientMethod)}
    if not name.startswith("__") and name != "_check_set_up"
)
METHODS = [name for name in NAMES if inspect.isfunction(getattr(GradientMethod, name))]
VALUES = sorted(
    {*NAMES, "_use_cleargrads", "_use_fp32_update", "_loss_scaling_isnan"}
    - {*METHODS, "_pre_update_hooks", "_post_update_hooks"}
)


def recording(calls):
    """Returns an optimizer that records which of its methods are called, and how."""

    def method(name):
        return lambda self, *args, **kwds: calls.append((name, args, kwds))

    # As after an update: before it nobody is asked whether gradients were finite.
    methods = {n: method(n) for n in METHODS} | {"_loss_scaling_isnan": False}
    return type("Recording", (GradientMethod,), methods)()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_each_method_of_chainer_s_optimizers_reaches_the_innermost(name, depth):
    calls = []
    optimizer = recording(calls)
    for _ in range(depth):
        optimizer = OptimizerWrapper(optimizer)
    parameters = [*inspect.signature(getattr(GradientMethod, name)).parameters][1:]
    given = [
        f"the {each}" for each in parameters if each not in ("args", "kwds", "kwargs")
    ]
    getattr(optimizer, name)(*given)
    ((called, args, kwds),) = calls
    assert called == name
    assert [*args, *kwds.values()] == given


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", VALUES)
def test_each_value_of_chainer_s_optimizers_is_the_innermost_s(name, depth):
    innermost = optimizer = chainer.optimizers.SGD()
    for _ in range(depth):
        optimizer = OptimizerWrapper(optimizer)
    setattr(optimizer, name, 3)
    assert getattr(innermost, name) == getattr(optimizer, name) == 3
    assert name not in vars(optimizer)


def test_a_wrapper_trains_by_itself_as_the_optimizer_does():
    """With a dynamic loss scale, hooks and an overflow."""

    def train(wrap):
        np.random.seed(0)
        link = L.Linear(3, 2)
        optimizer = wrap(chainer.optimizers.MomentumSGD(0.1)).setup(link)
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
        optimizer.loss_scaling()
        scales = []
        for step in range(6):

            def loss(overflows=step == 3):
                x = np.full((1, 3), np.inf if overflows else 1, "f")
                return chainer.functions.sum(link(x))

            optimizer.update(loss)
            scales.append(optimizer._loss_scale)
        return scales, link.W.array

    with pytest.warns(UserWarning, match="Non finite number found"):
        scales, weights = train(lambda sgd: OptimizerWrapper(OptimizerWrapper(sgd)))
        expected, array = train(lambda sgd: sgd)
    assert scales == expected and len(set(scales)) > 3
    np.testing.assert_array_equal(weights, array)
