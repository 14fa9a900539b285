"""Channels that are pruned, and the quantized layer that reads them."""

import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    load_applied,
)
from model_compression.quantized_links import weight_of

PRUNED = Prune(
    "l2",
    layers="/0",
    to=0.5,
    granularity="channel",
    begin=(1, "iteration"),
    end=(4, "iteration"),
    steps=2,
)


def build():
    np.random.seed(3)
    return Divisible(
        L.Convolution2D(2, 6, 3, pad=1),
        F.relu,
        functools.partial(F.max_pooling_2d, ksize=2),
        L.Linear(6 * 9, 8),
        F.tanh,
        L.Linear(8, 3),
    )


def minibatch(iteration):
    rng = np.random.default_rng(iteration)
    x = rng.normal(size=(8, 2, 6, 6)).astype(np.float32)
    return x, rng.integers(3, size=8).astype(np.int32)


def train(plan, shrink=False):
    """Returns a trained model, its losses, and a later minibatch's outputs."""
    model = build()
    optimizer = chainer.optimizers.MomentumSGD(0.05).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
    compress = Compress(plan, optimizer, shrink=shrink)
    losses = []
    for iteration in range(1, 9):
        x, t = minibatch(iteration)
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
        losses.append(float(loss.array))
    return model, losses, outputs(model)


def outputs(model):
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(minibatch(99)[0]).array


RULES = [
    {"method": "int8", "targets": ["weight", "bias"]},
    {"method": "int4", "symmetric": False},
    {"method": "int4", "per_channel": False, "targets": ["weight", "bias"]},
    {"method": "int3", "symmetric": False, "per_channel": False},
    {"method": "codebook3"},
]


@pytest.mark.parametrize("begin", [0, 6])
@pytest.mark.parametrize("rule", RULES)
def test_channels_that_have_gone_have_no_part_in_few_bits(rule, begin, tmp_path):
    rule = Quantize(layers=["/0", "/3"], begin=(begin, "iteration"), **rule)
    plan = CompressionPlan([PRUNED, rule])
    masked, losses, y = train(plan)
    small, found, z = train(plan, shrink=True)
    assert small[3].W.shape == (8, 3 * 9)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(z, y, rtol=1e-4, atol=1e-5)
    # The same numbers go away in apply() and in the file.
    applied = apply(masked, plan)
    np.testing.assert_allclose(outputs(applied), y, rtol=1e-4, atol=1e-5)
    chainer.serializers.save_npz(tmp_path / "small.npz", applied)
    loaded = load_applied(tmp_path / "small.npz", build(), plan)
    np.testing.assert_array_equal(outputs(loaded), outputs(applied))


def test_a_scale_is_that_of_the_weights_that_are_read():
    rule = Quantize("int4", layers="/3", begin=(2, "iteration"), per_channel=False)
    model, _, _ = train(CompressionPlan([PRUNED, rule]))
    is_read = (model[0].W.array != 0).any(axis=(1, 2, 3)).repeat(9)
    assert is_read.sum() == 3 * 9
    weight = model[3].W.array
    largest = abs(weight[:, is_read]).max()
    assert weight_of(model[3], weight, rule).scale.item() == np.float32(largest / 7)
    # As the model would have been without its channels from the start.
    assert (weight[:, ~is_read] == 0).all()


@pytest.mark.parametrize("others", [[], [Prune("l1", layers="/3", to=0.25)]])
def test_columns_come_back_with_their_channels(others):
    plan = CompressionPlan(
        [PRUNED, Quantize("int8", layers="/3", begin=(50, "iteration")), *others]
    )
    model = build()
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    compress = Compress(plan, optimizer, metric="quality", tolerance=0.1)
    before = [param.array.copy() for param in model.params()]
    compress._model.take({0: 0.5, **({2: 0.25} if others else {})})
    assert (model[3].W.array == 0).all(axis=0).sum() == 3 * 9
    compress._model.take_back([0])
    for (path, param), array in zip(model.namedparams(), before):
        expected = array
        if others and path == "/3/W":
            expected = np.where(abs(array) < np.quantile(abs(array), 0.25), 0, array)
        np.testing.assert_array_equal(param.array, expected, err_msg=path)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_steps_of_one_time_come_back_whichever_was_first(order):
    both = [PRUNED, Prune("l1", layers="/3", to=0.5)]
    rules = [both[i] for i in order]
    rules.append(Quantize("int8", layers="/3", begin=(50, "iteration")))
    model = build()
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    compress = Compress(
        CompressionPlan(rules), optimizer, metric="quality", tolerance=0.1
    )
    before = [param.array.copy() for param in model.params()]
    compress._model.take({0: 0.5, 1: 0.5})
    # Columns that read no channel, and elements of others.
    assert 0.5 < (model[3].W.array == 0).mean() < 1
    compress._model.take_back([0, 1])
    for (path, param), array in zip(model.namedparams(), before):
        np.testing.assert_array_equal(param.array, array, err_msg=path)


def test_columns_of_a_layer_that_is_not_quantized_stay():
    model, _, _ = train(CompressionPlan([PRUNED]))
    assert (model[3].W.array != 0).all()
