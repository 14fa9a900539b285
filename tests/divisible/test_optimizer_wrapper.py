"""Optimizers that stand where others stood."""

import chainer
import chainer.links as L
import numpy as np
import pytest
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
