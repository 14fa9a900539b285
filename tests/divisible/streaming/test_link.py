"""Streamed layers compute what resident ones do, and refuse what they cannot."""

import errno
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_kernels
from divisible import Divisible, deferred_init, profile
from divisible.streaming import StoreError, Streamed, segments
from mixed_precision.lars import LARSHook
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16

OPTIMIZERS = {
    "SGD": lambda: chainer.optimizers.SGD(0.1),
    "MomentumSGD": lambda: chainer.optimizers.MomentumSGD(0.1),
    "Adam": chainer.optimizers.Adam,
    "SMORMS3": chainer.optimizers.SMORMS3,
}


def perceptron(streamed, segment=7, activation=F.relu):
    """Two layers, of which nothing but the place of the weights may differ."""
    with deferred_init(seed=3):
        first, second = L.Linear(50, 40), L.Linear(40, 30)
        if streamed:
            return Divisible(
                Streamed(first, activation=activation, segment=segment),
                F.identity,
                Streamed(second, segment=segment),
            ).divide()
        return Divisible(first, activation, second).divide()


def images(streamed, segment=3):
    with deferred_init(seed=1):
        first = L.Convolution2D(2, 8, 3, stride=2, pad=1)
        second = L.Convolution2D(8, 10, 2, dilate=2, nobias=True)
        if streamed:
            first = Streamed(first, activation=F.relu, segment=segment)
            second = Streamed(second, segment=segment)
        between = F.identity if streamed else F.relu
        return Divisible(first, between, second).divide()


def train(stage, optimizer, shape, n_steps=20, hooks=()):
    """Returns the losses of some steps."""
    optimizer.setup(stage)
    for hook in hooks:
        optimizer.add_hook(hook)
    random, losses = np.random.RandomState(0), []
    for _ in range(n_steps):
        y = stage(random.randn(16, *shape).astype("f"))
        loss = F.mean_squared_error(y, np.ones_like(y.array))
        stage.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses


def assert_alike(stage, other, rtol=1e-5):
    others = dict(other.namedparams())
    for path, param in stage.namedparams():
        np.testing.assert_allclose(
            param.array, others[path].array, rtol, atol=1e-6, err_msg=path
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_a_resident_model(name):
    stages = perceptron(False), perceptron(True)
    losses = [train(stage, OPTIMIZERS[name](), (50,)) for stage in stages]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
    assert_alike(*stages)


def test_trains_convolutions():
    stages = images(False), images(True)
    losses = [train(each, OPTIMIZERS["Adam"](), (2, 9, 9)) for each in stages]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert_alike(*stages)


def test_segments_are_chosen_by_the_first_minibatches_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "LEAST_BYTES", 1000)
    stages = perceptron(False), perceptron(True, "auto")
    first, second = stages[1][0], stages[1][2]
    found = [train(each, OPTIMIZERS["Adam"](), (50,), 2) for each in stages]
    # The whole has been tried for the one, and the half is tried now.
    assert list(first.segment_seconds) == [40] and first.segment == 20
    found += [train(each, OPTIMIZERS["Adam"](), (50,), 3) for each in stages]
    for resident, streamed in zip(found[::2], found[1::2]):
        np.testing.assert_allclose(streamed, resident, rtol=1e-5)
    assert list(first.segment_seconds) == [40, 20, 10, 5]
    assert list(second.segment_seconds) == [30, 15, 7]
    for layer in (first, second):
        seconds = layer.segment_seconds
        assert layer.segment == min(seconds, key=seconds.get) and min(seconds) > 0
    # A layer that begins anew chooses what was chosen, if it may.
    first.W.trial.choose(10)
    file = tmp_path / "model.npz"
    chainer.serializers.save_npz(file, stages[1])
    other = perceptron(True, "auto")
    chainer.serializers.load_npz(file, other)
    assert (other[0].segment, other[2].segment) == (10, second.segment)
    train(other, OPTIMIZERS["Adam"](), (50,), 2)
    assert other[0].segment == 10 and not other[0].segment_seconds
    fixed = perceptron(True, 7)
    chainer.serializers.load_npz(file, fixed)
    assert fixed[0].segment == 7


def test_what_is_not_trained_is_not_timed(monkeypatch):
    monkeypatch.setattr(segments, "LEAST_BYTES", 1000)
    stage = perceptron(True, "auto")
    optimizer = OPTIMIZERS["Adam"]().setup(stage)
    with chainer.no_backprop_mode():
        for _ in range(5):
            stage(np.ones((2, 50), "f"))
            optimizer.update()
    assert stage[0].segment == 40 and not stage[0].segment_seconds


def test_same_initial_weights_whatever_the_segment():
    whole = perceptron(False)
    for segment in (1, 7, 40, "auto"):
        stage = perceptron(True, segment)
        for path, param in whole.namedparams():
            found = dict(stage.namedparams())[path]
            np.testing.assert_array_equal(found.array, param.array)


@pytest.mark.parametrize("activation", [F.elu, F.leaky_relu, F.sigmoid, F.tanh])
def test_activations_and_input_gradients(activation):
    x = np.random.RandomState(0).randn(6, 50).astype("f")
    gradients = []
    for streamed in (False, True):
        variable = chainer.Variable(x)
        y = perceptron(streamed, activation=activation)(variable)
        y.grad = np.ones_like(y.array)
        y.backward()
        gradients.append(variable.grad)
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_several_backwards_add_up():
    stages = perceptron(False), perceptron(True)
    for stage in stages:
        stage.cleargrads()
        for seed in range(3):
            y = stage(np.random.RandomState(seed).randn(4, 50).astype("f"))
            y.grad = np.ones_like(y.array)
            y.backward()
    for param, other in zip(stages[0].params(), stages[1].params()):
        np.testing.assert_allclose(param.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_a_layer_called_twice_adds_up():
    gradients = []
    for streamed in (False, True):
        with deferred_init(seed=0):
            link = L.Linear(5, 5)
            layer = Streamed(link, segment=2) if streamed else link
            stage = Divisible(layer, F.tanh, layer).divide()
        y = stage(np.ones((3, 5), "f"))
        y.grad = np.ones_like(y.array)
        stage.cleargrads()
        y.backward()
        gradients.append(stage[0].W.grad.copy())
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_clipping_and_decay_see_the_gradients():
    def hooks():
        return (
            chainer.optimizer_hooks.GradientClipping(0.5),
            chainer.optimizer_hooks.WeightDecay(0.01),
        )

    stages = perceptron(False), perceptron(True)
    losses = [train(each, OPTIMIZERS["Adam"](), (50,), 5, hooks()) for each in stages]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert_alike(*stages)


def test_loss_scale_is_divided_out():
    stages = perceptron(False), perceptron(True)
    x, t = np.random.RandomState(0).randn(4, 50).astype("f"), np.ones((4, 30), "f")
    for stage in stages:
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
        optimizer.loss_scaling(scale=8.0)
        for _ in range(3):
            optimizer.update(lambda y: F.mean_squared_error(y(x), t), stage)
    assert_alike(*stages)


def test_another_optimizer_begins_anew():
    stages = perceptron(False), perceptron(True)
    for stage in stages:
        for make in (OPTIMIZERS["SMORMS3"], OPTIMIZERS["Adam"], OPTIMIZERS["Adam"]):
            train(stage, make(), (50,), 2)
    assert_alike(*stages)


def test_disabled_parameters_stay():
    stage = perceptron(True)
    optimizer = OPTIMIZERS["Adam"]().setup(stage)
    stage[0].disable_update()
    before = stage[0].W.array.copy(), stage[2].W.array.copy()
    y = stage(np.ones((2, 50), "f"))
    y.grad = np.ones_like(y.array)
    y.backward()
    optimizer.update()
    np.testing.assert_array_equal(stage[0].W.array, before[0])
    assert (stage[2].W.array != before[1]).any()


def test_npz_files_fit_both_ways(tmp_path):
    file, stages = tmp_path / "model.npz", (perceptron(False), perceptron(True))
    for saved, loaded in (stages, stages[::-1]):
        for number, param in enumerate(saved.params()):
            param.array[...] += number + 1
        chainer.serializers.save_npz(file, saved)
        chainer.serializers.load_npz(file, loaded)
        assert_alike(saved, loaded, rtol=0)


def test_a_link_in_memory_is_refused_with_the_cure():
    with pytest.raises(StoreError, match="with deferred_init"):
        Streamed(L.Linear(3, 4))


@pytest.mark.parametrize(
    "error, words, make",
    [
        (ValueError, "sizes of its input", lambda: Streamed(L.Linear(4))),
        (TypeError, "Deconvolution2D", lambda: Streamed(L.Deconvolution2D(1, 1, 3))),
        (ValueError, "2 groups", lambda: Streamed(L.Convolution2D(2, 2, 3, groups=2))),
        (
            ValueError,
            "next layer",
            lambda: Streamed(L.Linear(3, 4), activation=F.softmax),
        ),
        (ValueError, "segment=0", lambda: Streamed(L.Linear(3, 4), segment=0)),
        (ValueError, "'auto'", lambda: Streamed(L.Linear(3, 4), segment="all")),
        (
            ValueError,
            "more than memory='1kB'",
            lambda: Streamed(L.Linear(30, 40), segment=5, memory="1kB"),
        ),
        (TypeError, "number of rows", lambda: Streamed(L.Linear(3, 4), segment=1.5)),
        (
            ValueError,
            "on the processor",
            lambda: Streamed(L.Linear(3, 4), store="host"),
        ),
        (ValueError, "expected 'disk'", lambda: Streamed(L.Linear(3, 4), store="tape")),
        (
            StoreError,
            "no such directory",
            lambda: Streamed(L.Linear(3, 4), directory="/nowhere/at/all"),
        ),
        (
            TypeError,
            "Orthogonal makes the whole array at once",
            lambda: Streamed(
                L.Linear(3, 4, initialW=chainer.initializers.Orthogonal())
            ),
        ),
    ],
)
def test_refusals(error, words, make):
    with deferred_init(), pytest.raises(error, match=words):
        make()


def test_rules_that_look_at_several_elements_are_refused():
    class Rule(chainer.UpdateRule):
        is_elementwise = False

    stage = perceptron(True)
    stage[0].W.update_rule = Rule()
    stage[0].W.grad = np.ones_like(stage[0].W.array)
    with pytest.raises(TypeError, match="more than one element"):
        stage[0].W.update()


def test_hooks_of_a_rule_that_look_at_several_elements_are_refused():
    for hook in (chainer.optimizer_hooks.GradientLARS(), LARSHook()):
        stage = perceptron(True)
        chainer.optimizers.SGD().setup(stage)
        stage[0].W.update_rule.add_hook(hook)
        stage[0].W.grad = np.ones_like(stage[0].W.array)
        with pytest.raises(TypeError, match="add it to the optimizer"):
            stage[0].W.update()


def test_a_disk_that_fills_in_the_step_is_told_and_training_goes_on(monkeypatch):
    room, reserve = [2], os.posix_fallocate

    def fills(descriptor, start, n_bytes):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        reserve(descriptor, start, n_bytes)

    stages = perceptron(False), perceptron(True)
    monkeypatch.setattr(os, "posix_fallocate", fills)
    # There is room for the gradients, and none for the momentum.
    optimizer = OPTIMIZERS["MomentumSGD"]
    with pytest.raises(StoreError, match=r"Linear\(40, 50\), v: .* 8000 bytes .* free"):
        train(stages[1], optimizer(), (50,))
    room[0] = 2
    losses = [train(each, optimizer(), (50,), 3) for each in stages]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_copies_are_refused_and_views_share():
    stage = perceptron(True)
    with pytest.raises(StoreError, match="not copied"):
        stage.copy("copy")
    shared = stage.copy("share")
    assert shared[0].W.array is stage[0].W.array


def test_profiles_and_copies_before_it_is_made():
    with deferred_init(seed=0):
        layers = Streamed(L.Linear(6, 5), activation=F.relu, segment=2), L.Linear(5, 3)
        model = Divisible(*layers)
    x, t = np.ones((4, 6), "f"), np.zeros(4, "i")
    found = profile(model, x, t, F.softmax_cross_entropy, repeat=1)
    assert [each.parameter_bytes for each in found.layers] == [4 * 35, 4 * 18]
    copied = model.copy("copy").divide()
    stage = model.divide()
    np.testing.assert_array_equal(copied[0].W.array, stage[0].W.array)
    assert copied[0].W.array is not stage[0].W.array


def test_gradients_have_no_gradients():
    x = chainer.Variable(np.ones((2, 50), "f"))
    y = F.sum(perceptron(True)(x))
    with pytest.raises(RuntimeError, match="no double backward"):
        y.backward(enable_double_backprop=True)


@pytest.mark.parametrize("make, shape", [(perceptron, (50,)), (images, (2, 9, 9))])
@in_bfloat16
def test_products_in_bfloat16(make, shape):
    x = kernels.arrays((16, *shape), 0)

    def gradients(streamed, dtype):
        stage = make(streamed)
        variable = chainer.Variable(x)
        with chainer_kernels.products(dtype):
            y = stage(variable)
        stage.cleargrads()
        F.sum(y * y).backward()
        return y.array, variable.grad, stage[0].W.grad.copy()

    for ours, right, other in zip(
        gradients(True, "bfloat16"),
        gradients(False, "bfloat16"),
        gradients(False, "float32"),
    ):
        scale = np.abs(right).max()
        np.testing.assert_allclose(ours, right, 1e-3, 1e-3 * scale)
        assert not np.allclose(right, other, 1e-4, 1e-4 * scale)
