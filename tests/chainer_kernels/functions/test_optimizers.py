"""Updates by kernels are those of Chainer's rules, bit for bit."""

import chainer
import numpy as np
import pytest
from chainer import optimizers

import chainer_kernels
from tests.support import kernels

OPTIMIZERS = [
    optimizers.SGD,
    optimizers.MomentumSGD,
    optimizers.CorrectedMomentumSGD,
    optimizers.NesterovAG,
    optimizers.Adam,
    lambda: optimizers.AdamW(weight_decay_rate=0.1, eta=0.7),
    optimizers.AMSGrad,
    lambda: optimizers.AdaBound(final_lr=0.01),
    lambda: optimizers.AMSBound(final_lr=0.01),
    optimizers.AdaGrad,
    optimizers.AdaDelta,
    optimizers.RMSprop,
    lambda: optimizers.RMSprop(eps_inside_sqrt=True),
    optimizers.RMSpropGraves,
    optimizers.SMORMS3,
    lambda: optimizers.MSVAG(weight_decay_rate=0.1),
]
SHAPE = (3, 60, 50, 2)
LARGE = 17000


def gradients():
    """Three of them; in some elements all are zero, some are no numbers."""
    found = [kernels.arrays(SHAPE, seed, "channels last") for seed in range(3)]
    found[1] = np.ascontiguousarray(found[1])
    for gradient in found:
        gradient[0, 0] = 0
    found[1][1, 1, :4, 0] = np.nan, np.inf, -np.inf, 1e30
    return found


@np.errstate(all="ignore")
def trained(make_optimizer, order, hook=None):
    """Returns the weight and the states after some updates."""
    param = chainer.Parameter(kernels.arrays(SHAPE, 5, order))
    # A link keeps the order of what it is given.
    assert param.array.strides == kernels.arrays(SHAPE, 5, order).strides
    link = chainer.Link()
    with link.init_scope():
        link.W = param
    optimizer = make_optimizer().setup(link)
    if hook is not None:
        optimizer.add_hook(hook)
    for gradient in gradients():
        param.grad = gradient.copy()
        optimizer.update()
    return param.array, param.update_rule


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("order", ["C", "channels last"])
def test_update_is_chainers(make_optimizer, order):
    with kernels.called() as names:
        ours, our_rule = trained(make_optimizer, order)
    assert names == {f"{type(our_rule).__name__}.update_core_cpu"}
    with chainer_kernels.disabled():
        right, right_rule = trained(make_optimizer, order)
    np.testing.assert_array_equal(ours, right)
    assert np.isfinite(ours).sum() > ours.size // 2
    states = right_rule.state or {}
    for name, state in states.items():
        np.testing.assert_array_equal(our_rule.state[name], state, name)
    assert vars(our_rule).get("beta_power") == vars(right_rule).get("beta_power")


def test_hooks_of_optimizers():
    hook = chainer.optimizer_hooks.WeightDecay(0.1)
    ours, _ = trained(optimizers.MomentumSGD, "C", hook)
    with chainer_kernels.disabled():
        right, _ = trained(optimizers.MomentumSGD, "C", hook)
    np.testing.assert_array_equal(ours, right)


def updated(weight, gradient, lr):
    """Updates a weight, and returns the kernels that did it."""
    param = chainer.Parameter(weight)
    param.grad = gradient
    rule = optimizers.SGD(lr).create_update_rule()
    with kernels.called() as names:
        rule.update(param)
    assert param.array is weight
    return names


def ones(shape, dtype=np.float32):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    "weight, lr",
    [
        (ones(99), 0.1),
        (ones(LARGE, np.float64), 0.1),
        (ones(LARGE, np.float16), 0.1),
        (ones(()), 0.1),
        (ones((2, LARGE))[:, ::2], 0.1),
        (ones(LARGE), np.float64(0.1)),
        (ones(LARGE), 1e-60),
    ],
)
def test_what_is_left_to_chainer(weight, lr):
    before, gradient = weight.copy(), np.full_like(weight, 0.3)
    assert not updated(weight, gradient, lr)
    ours = weight.copy()
    weight[...] = before
    with chainer_kernels.disabled():
        updated(weight, gradient, lr)
    np.testing.assert_array_equal(ours, weight)


def read_only(array):
    array.flags.writeable = False
    return array


def test_read_only_gradient():
    weight = ones(LARGE)
    assert updated(weight, read_only(ones(LARGE)), 0.25)
    np.testing.assert_array_equal(weight, 0.75)


def test_read_only_weight():
    weight = read_only(ones(LARGE))
    with pytest.raises(ValueError, match="read-only"):
        updated(weight, ones(LARGE), 0.1)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_parameter_without_gradient(make_optimizer):
    param = chainer.Parameter(np.ones(3, np.float32))
    make_optimizer().create_update_rule().update(param)
    np.testing.assert_array_equal(param.array, 1)


def test_parameter_without_values():
    param = chainer.Parameter()
    param.cleargrad()
    optimizers.Adam().create_update_rule().update(param)
    assert param.array is None


@pytest.mark.parametrize("make_optimizer", [optimizers.Adam, optimizers.RMSprop])
def test_epsilon_that_vanishes(make_optimizer):
    param = chainer.Parameter(np.ones(3, np.float32))
    param.grad = np.ones(3, np.float32)
    rule = make_optimizer(eps=1e-60).create_update_rule()
    # Chainer's message has a fault of its own.
    with pytest.raises((ValueError, AttributeError)):
        rule.update(param)
