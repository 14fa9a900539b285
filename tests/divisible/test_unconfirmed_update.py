"""Copies take an update back bit for bit, for all of Chainer's optimizers."""

import sys

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible.unconfirmed_update import UpdateCopies
from mixed_precision import LARS

OPTIMIZERS = [
    kind
    for kind in vars(chainer.optimizers).values()
    if isinstance(kind, type) and issubclass(kind, chainer.GradientMethod)
]
SETTINGS = {"with_gradients": True}


def bits(optimizer):
    """Returns everything that an update changes."""
    found = [optimizer.t]
    for name, param in sorted(optimizer.target.namedparams()):
        rule = param.update_rule
        state = {k: np.array(v).tobytes() for k, v in (rule.state or {}).items()}
        numbers = {k: v for k, v in vars(rule).items() if isinstance(v, (int, float))}
        found += [name, param.array.tobytes(), rule.state is None, state, numbers]
        found.append(param.grad.tobytes())
    return found


def made(kind):
    np.random.seed(0)
    link = chainer.ChainList(L.Linear(3, 2), L.Linear(2, 2))
    return kind().setup(link)


def give_gradients(optimizer, seed):
    rng = np.random.RandomState(seed)
    for _, param in sorted(optimizer.target.namedparams()):
        param.grad = rng.normal(size=param.shape).astype(np.float32)


@pytest.mark.parametrize("kind", [*OPTIMIZERS, LARS], ids=lambda kind: kind.__name__)
def test_an_update_is_taken_back(kind):
    optimizer, copies = made(kind), UpdateCopies()
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    for seed in range(3):
        give_gradients(optimizer, seed)
        before = bits(optimizer)
        copies.take([optimizer], **SETTINGS)
        optimizer.update()
        assert bits(optimizer) != before
        with copies.put_back():
            assert bits(optimizer) == before
            optimizer.update()
        after = bits(optimizer)
        with copies.put_back():
            pass
        optimizer.update()
        assert bits(optimizer) == after


def test_the_count_of_a_parameter_without_an_array_is_taken_back():
    link = chainer.ChainList(L.Linear(3, 2), L.Linear(None, 2, nobias=True))
    optimizer, copies = chainer.optimizers.Adam().setup(link), UpdateCopies()
    link.cleargrads()
    copies.take([optimizer], **SETTINGS)
    optimizer.update()
    with copies.put_back():
        assert link[1].W.update_rule.t == 0
        optimizer.update()
    assert link[1].W.update_rule.t == optimizer.t == 1


def test_the_right_update_has_the_settings_of_its_time():
    optimizer, copies = made(chainer.optimizers.MomentumSGD), UpdateCopies()
    decay = chainer.optimizer_hooks.WeightDecay(0.1)
    optimizer.add_hook(decay)
    give_gradients(optimizer, 0)
    copies.take([optimizer], **SETTINGS)
    optimizer.update()
    after = bits(optimizer)
    optimizer.lr, decay.rate = 0.5, 0.7
    optimizer.remove_hook("WeightDecay")
    frozen = optimizer.target[0].W
    frozen.update_rule.enabled = False
    with copies.put_back():
        optimizer.update()
        frozen.update_rule.enabled = True
        assert bits(optimizer) == after
    assert (optimizer.lr, decay.rate, frozen.update_rule.enabled) == (0.5, 0.7, False)
    assert not optimizer._hookable._pre_update_hooks


def test_float32_parameters_of_rules_are_taken_back():
    optimizer, copies = made(lambda: chainer.optimizers.Adam(0.1)), UpdateCopies()
    for param in optimizer.target.params():
        param.array = param.array.astype(np.float16)
    optimizer.use_fp32_update()
    params = [param for _, param in sorted(optimizer.target.namedparams())]
    found = []
    for seed in (0, 1):
        for param in params:
            rng = np.random.RandomState(seed)
            param.grad = rng.normal(size=param.shape).astype(np.float16)
        copies.take([optimizer], **SETTINGS)
        optimizer.update()
        exact = [p.update_rule._fp32_param.array.tobytes() for p in params]
        with copies.put_back():
            found.append([p.update_rule._fp32_param for p in params])
            optimizer.update()
        assert exact == [p.update_rule._fp32_param.array.tobytes() for p in params]
    assert all(each is None for each in found[0])
    assert all(each is not None for each in found[1])


def test_copies_are_counted_and_serve_again():
    optimizer, copies = made(lambda: chainer.optimizers.Adam(0.1)), UpdateCopies()
    n_bytes = sum(param.array.nbytes for param in optimizer.target.params())
    sizes = []
    for seed in range(3):
        give_gradients(optimizer, seed)
        copies.take([optimizer], with_gradients=seed == 2)
        sizes.append(copies.n_bytes)
        optimizer.update()
    assert sizes == [n_bytes, 3 * n_bytes, 4 * n_bytes]


def test_weights_do_not_look_shared_because_of_their_copies():
    # Kernels would make sure of each weight before each use.
    optimizer, copies = made(chainer.optimizers.Adam), UpdateCopies()
    weights = [param.array for param in optimizer.target.params()]
    before = [sys.getrefcount(array) for array in weights]
    give_gradients(optimizer, 0)
    copies.take([optimizer], **SETTINGS)
    assert [sys.getrefcount(array) for array in weights] == before


def test_a_parameter_with_another_array_gets_its_values_back():
    optimizer, copies = made(chainer.optimizers.Adam), UpdateCopies()
    params = [*optimizer.target.params()]
    before = [param.array.copy() for param in params]
    give_gradients(optimizer, 0)
    copies.take([optimizer], **SETTINGS)
    optimizer.update()
    for param in params:
        param.array = param.array + 1
    with copies.put_back():
        pass
    for param, array in zip(params, before):
        np.testing.assert_array_equal(param.array, array)
