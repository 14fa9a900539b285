"""Channels go from a model while it trains, and nothing else changes."""

import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible
from mixed_precision import MixedPrecision, float32_loss, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize, apply
from tests.support.examples import examples

OPTIMIZERS = {
    "momentum": lambda: chainer.optimizers.MomentumSGD(0.05),
    "adam": lambda: chainer.optimizers.Adam(0.02),
}


def build(nobias=False):
    np.random.seed(3)
    return Divisible(
        # A bias before the normalization has no gradient but rounding errors.
        L.Convolution2D(2, 6, 3, pad=1, nobias=True),
        L.BatchNormalization(6),
        F.relu,
        functools.partial(F.max_pooling_2d, ksize=2),
        L.Convolution2D(6, 5, 3, pad=1, nobias=nobias),
        F.leaky_relu,
        L.Linear(5 * 9, 8),
        F.tanh,
        L.Linear(8, 3),
    )


def minibatches(n):
    rng = np.random.default_rng(1)
    for _ in range(n):
        x = rng.normal(size=(8, 2, 6, 6)).astype(np.float32)
        yield x, rng.integers(3, size=8).astype(np.int32)


def train(model, optimizer, compress, n=10):
    losses = []
    for iteration, (x, t) in enumerate(minibatches(n), 1):
        x = x.astype(model[0].W.dtype)
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
        losses.append(float(loss.array))
    return losses


def run(plan, shrink, kind="adam", nobias=False, half=False):
    model = build(nobias)
    optimizer = OPTIMIZERS[kind]()
    optimizer.setup(model)
    if half:
        optimizer.use_fp32_update()
        for link in (model[0], model[4], model[6], model[8]):
            for param in link.params():
                param.array = param.array.astype(np.float16)
    compress = Compress(plan, optimizer, shrink=shrink)
    return train(model, optimizer, compress), model, compress


def plan_of(degree, *more):
    course = {"begin": (2, "iteration"), "end": (4, "iteration"), "steps": 2}
    rules = [
        Prune("l2", layers=["/0", "/4"], to=degree, granularity="channel", **course),
        Prune(
            "taylor",
            layers="/6",
            to=degree,
            granularity="channel",
            begin=(3, "iteration"),
        ),
    ]
    return CompressionPlan([*rules, *more])


@examples(12)
@given(
    st.floats(0.1, 0.95),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.booleans(),
)
def test_training_goes_on_as_with_channels_of_zeros(degree, kind, nobias):
    plan = plan_of(degree)
    losses, masked, _ = run(plan, False, kind, nobias)
    found, small, compress = run(plan, True, kind, nobias)
    np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-5)
    expected = apply(masked, plan)
    for (path, param), (_, other) in zip(small.namedparams(), expected.namedparams()):
        assert param.shape == other.shape, path
        np.testing.assert_allclose(param.array, other.array, 1e-4, 1e-5, err_msg=path)
        for value in param.update_rule.state.values():
            assert np.shape(value) == param.shape
    np.testing.assert_allclose(small[1].avg_var, expected[1].avg_var, 1e-4)
    for position in (0, 4):
        assert small[position].out_channels == len(small[position].W.array)
    assert small[4].in_channels == small[0].out_channels
    assert small[8].in_size == small[6].out_size == len(small[6].W.array)


def test_masks_of_other_rules_go_with_the_channels():
    before, after = {"begin": (1, "iteration")}, {"begin": (7, "iteration")}
    plan = CompressionPlan(
        [
            Prune(
                "l2", layers="/0", to=0.5, granularity="channel", begin=(3, "iteration")
            ),
            Prune("magnitude", layers="/4", to=0.5, **before),
            Prune("taylor", layers="/8", to=0.5, **after),
        ]
    )
    losses, masked, _ = run(plan, False)
    found, small, compress = run(plan, True)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    kept = (masked[0].W.array != 0).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(
        small[4].W.array == 0, masked[4].W.array[:, kept] == 0
    )
    np.testing.assert_array_equal(small[8].W.array == 0, masked[8].W.array == 0)
    # As of the whole model: what has gone is no less zero than it was.
    assert compress.sparsity > 0.5


def test_the_values_of_a_codebook_stay_few():
    plan = plan_of(0.5, Quantize("codebook2", layers="/4", begin=(1, "iteration")))
    _, small, _ = run(plan, True)
    values = small[4].W.array[small[4].W.array != 0]
    assert small[4].W.shape[:2] == (2, 3) and 1 < len(np.unique(values)) <= 4


def test_float32_masters_go_too():
    plan = plan_of(0.5)
    _, small, _ = run(plan, True, half=True)
    for link in (small[0], small[4], small[6], small[8]):
        for param in link.params():
            assert param.dtype == np.float16
            assert param.update_rule._fp32_param.shape == param.shape


def test_masters_of_mixed_precision_go_too():
    plan = CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")])
    masters, weights = [], []
    for shrink in (False, True):
        model = to_float16(build())
        optimizer = MixedPrecision(
            chainer.optimizers.MomentumSGD(0.05), loss_scale=128.0
        ).setup(model)
        compress = Compress(plan, optimizer, shrink=shrink)
        for iteration, (x, t) in enumerate(minibatches(3), 1):
            optimizer.update(
                float32_loss(F.softmax_cross_entropy), model(x.astype(np.float16)), t
            )
            # Momentum and weights of the first update alone are alike to the bit.
            compress.advance(iteration, 0.0)
            break
        masters.append({})
        optimizer.change_masters(lambda k, v: masters[-1].setdefault(k, v.copy()))
        weights.append(model[0].W.array)
    masked, small = masters
    kept = (weights[0] != 0).any(axis=(1, 2, 3))
    assert kept.sum() == 3
    np.testing.assert_array_equal(small["/0/W"], masked["/0/W"][kept])
    np.testing.assert_array_equal(small["/4/W"], masked["/4/W"][:, kept])
    assert (small["/4/W"] != small["/4/W"].astype(np.float16)).any()
    loss = float32_loss(F.softmax_cross_entropy)
    optimizer.update(loss, model(x.astype(np.float16)), t)
    assert optimizer._masters.by_path()["/4/W"].shape == (5, 3, 3, 3)


def test_gradients_that_wait_for_an_update_go_too():
    plan = CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")])
    model = build()
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    compress = Compress(plan, optimizer)
    (x, t), _ = minibatches(2)
    compress.advance(1, 0.0)
    F.softmax_cross_entropy(model(x), t).backward()
    before = model[4].W.grad
    gone = (model[0].W.array == 0).all(axis=(1, 2, 3))
    assert compress.shrink() == {"/0": 3}
    np.testing.assert_array_equal(model[4].W.grad, before[:, ~gone])
    optimizer.update()
    assert compress.shrink() == {}


def test_channels_stay_until_their_rule_is_over():
    plan = CompressionPlan(
        [
            Prune(
                "l2",
                layers="/0",
                to=0.5,
                granularity="channel",
                end=(4, "iteration"),
                steps=2,
            )
        ]
    )
    model = build()
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    compress = Compress(plan, optimizer)
    compress.advance(1, 0.0)
    assert (model[0].W.array == 0).all(axis=(1, 2, 3)).sum() == 3
    assert compress.shrink() == {} and model[0].W.shape[0] == 6
    compress.advance(4, 0.0)
    assert compress.shrink() == {"/0": 3}


@pytest.mark.parametrize("degree", [0.5, 0.9])
def test_a_file_of_fewer_channels_is_refused(degree, tmp_path):
    """NumPy would make eight copies of a single channel."""
    plan = CompressionPlan([Prune("l2", layers="/0", to=degree, granularity="channel")])

    def make():
        model = Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 3))
        optimizer = chainer.optimizers.SGD().setup(model)
        return Compress(plan, optimizer, shrink=True)

    compress = make()
    compress.advance(1, 0.0)
    chainer.serializers.save_npz(tmp_path / "compress.npz", compress)
    chainer.serializers.load_npz(tmp_path / "compress.npz", compress)
    with pytest.raises(ValueError, match="channels of /0/W, and the model has 8: use"):
        chainer.serializers.load_npz(tmp_path / "compress.npz", make())


def test_channels_that_may_come_back_stay():
    plan = CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")])
    model = build()
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    compress = Compress(plan, optimizer, metric="quality", tolerance=0.1, shrink=True)
    compress.advance(1, 0.0, {"quality": 1.0})
    assert model[0].W.shape[0] == 6 and compress.sparsity == 0.5
    compress.advance(2, 0.0, {"quality": 0.95})
    assert model[0].W.shape[0] == 3 and compress.sparsity == 0.5


def test_gradients_that_are_under_way_are_refused():
    plan = CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")])
    optimizer = chainer.optimizers.SGD(0.1).setup(build())
    compress = Compress(plan, optimizer)
    compress.advance(1, 0.0)
    optimizer.double_buffering = True
    with pytest.raises(ValueError, match="double_buffering"):
        compress.shrink()


class Factored(chainer.optimizers.SGD):
    """An optimizer whose rule keeps sums of rows, and a number."""

    def create_update_rule(self):
        return FactoredRule(self.hyperparam)


class FactoredRule(chainer.optimizers.sgd.SGDRule):
    def init_state(self, param):
        self.state["count"] = np.zeros(1, np.float32)
        if param.ndim == 2:
            self.state["rows"] = np.zeros(param.shape[0], np.float32)


def test_what_a_rule_keeps_of_rows_is_refused_before_anything_changes():
    model = Divisible(L.Linear(4, 6), F.relu, L.Linear(6, 2))
    optimizer = Factored(0.1).setup(model)
    compress = Compress(
        CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")]),
        optimizer,
    )
    optimizer.update(lambda: F.sum(model(np.ones((2, 4), np.float32))))
    compress.advance(1, 0.0)
    with pytest.raises(ValueError, match=r"FactoredRule keeps rows of \(6,\) for /0/W"):
        compress.shrink()
    assert model[0].W.shape == (6, 4) and model[2].W.shape == (2, 6)
    optimizer.update(lambda: F.sum(model(np.ones((2, 4), np.float32))))
    # The same without it.
    for param in model.params():
        param.update_rule.state.pop("rows", None)
    assert compress.shrink() == {"/0": 3}
    assert model[0].W.update_rule.state["count"].shape == (1,)
