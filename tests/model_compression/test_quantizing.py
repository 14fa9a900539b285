"""Ranges of activations, of several rules and where updates are skipped."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from model_compression import Compress, CompressionPlan, Quantize, apply


def average(minibatches):
    """Returns the moving average of least and greatest values."""
    found = None
    for x in minibatches:
        ends = np.array([x.min(), x.max()], np.float64)
        found = ends if found is None else 0.9 * found + 0.1 * ends
    return found


def relus(n):
    """Returns layers that pass on what is positive."""
    layers = []
    for _ in range(n):
        layers += [L.Linear(4, 4, nobias=True, initialW=np.eye(4)), F.relu]
    return Divisible(*layers)


def loss_of(model):
    return lambda x: F.sum(F.cast(model(x), np.float32))


def train(model, optimizer, plan, minibatches):
    compress = Compress(CompressionPlan(plan), optimizer)
    compress.advance(0, 0.0)
    for iteration, x in enumerate(minibatches, 1):
        optimizer.update(loss_of(model), x)
        compress.advance(iteration, 0.0)
    return compress


class Beside(chainer.ChainList):
    """Layers that read the same inputs."""

    def forward(self, x):
        return sum(layer(x) for layer in self)


@pytest.mark.parametrize("begins", [(0, 2, 6), (0, 5, 0), (8, 0, 1)])
@pytest.mark.parametrize("freezes", [(2, 3, 4), (1, None, 2)])
def test_each_rule_counts_the_minibatches_of_its_own_ranges(begins, freezes):
    rng, model = np.random.default_rng(0), Beside(*(L.Linear(4, 2) for _ in begins))
    xs = [rng.normal(size=(5, 4)).astype(np.float32) for _ in range(12)]
    plan = [
        Quantize(
            "int8",
            layers=f"/{i}",
            targets="input",
            begin=(begin, "iteration"),
            freeze_after=n,
        )
        for i, (begin, n) in enumerate(zip(begins, freezes))
    ]
    train(model, chainer.optimizers.SGD(0.0).setup(model), plan, xs)
    for layer, begin, n in zip(model, begins, freezes):
        seen = xs[begin:] if n is None else xs[begin : begin + n]
        assert layer.input_n_seen[0] == len(seen)
        np.testing.assert_allclose(layer.input_range, average(seen), rtol=1e-5)


def test_another_plan_finds_its_ranges_anew():
    model, one = relus(1), np.ones((2, 4), np.float32)
    first = [Quantize("int8", layers="/0", targets="input", freeze_after=2)]
    train(model, chainer.optimizers.SGD(0.0).setup(model), first, [one, one, one])
    # The same plan goes on with the range that it has.
    train(model, chainer.optimizers.SGD(0.0).setup(model), first, [9 * one])
    assert model[0].input_range[1] == 1
    other = [Quantize("int4", layers="/0", targets="input", freeze_after=2)]
    # Applied without training, it has what there is.
    assert apply(model, CompressionPlan(other))(9 * one).array.max() == 1
    train(model, chainer.optimizers.SGD(0.0).setup(model), other, [3 * one] * 3)
    assert model[0].input_n_seen[0] == 2 and model[0].input_range[1] == 3


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("skips", ["nobody", "chainer", "mixed precision"])
@pytest.mark.parametrize("percentile", [None, 100.0])
@pytest.mark.filterwarnings("ignore:Non finite number")
def test_a_minibatch_that_is_not_finite_moves_no_range(value, skips, percentile):
    rng, model = np.random.default_rng(0), relus(1)
    xs = [abs(rng.normal(size=(5, 4))).astype(np.float32) for _ in range(5)]
    xs[2][0, 0] = value
    optimizer = chainer.optimizers.SGD(0.0)
    if skips == "mixed precision":
        to_float16(model)
        xs = [x.astype(np.float16) for x in xs]
        optimizer = MixedPrecision(optimizer, loss_scale=DynamicLossScale(16.0))
    elif skips == "chainer":
        optimizer.loss_scaling()
    optimizer.setup(model)
    if skips == "nobody":
        model.disable_update()
    rule = Quantize("int8", layers="/0", targets="input", percentile=percentile)
    with np.errstate(invalid="ignore", over="ignore"):
        train(model, optimizer, [rule], xs)
    assert model[0].input_n_seen[0] == 4
    expected = average(xs[:2] + xs[3:])
    np.testing.assert_allclose(model[0].input_range, expected, rtol=1e-3)


def test_a_minibatch_whose_gradients_overflow_moves_no_range():
    rng, model = np.random.default_rng(0), to_float16(relus(1))
    xs = [abs(rng.normal(size=(5, 4))).astype(np.float16) for _ in range(6)]
    optimizer = MixedPrecision(chainer.optimizers.SGD(0.0)).setup(model)
    plan = CompressionPlan([Quantize("int8", layers="/0", targets="input")])
    compress = Compress(plan, optimizer)
    compress.advance(0, 0.0)
    seen = []
    for iteration, x in enumerate(xs, 1):
        before = optimizer.n_skipped
        optimizer.update(loss_of(model), x)
        compress.advance(iteration, 0.0)
        seen += [x] if optimizer.n_skipped == before else []
    assert 0 < len(seen) < len(xs)
    assert model[0].input_n_seen[0] == len(seen)
    np.testing.assert_allclose(model[0].input_range, average(seen), rtol=1e-3)
