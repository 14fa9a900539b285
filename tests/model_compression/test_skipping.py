"""Layers that skip pruned blocks while a model trains, and when it is applied."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_kernels import block_choice
from divisible import Divisible
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    block_report,
    load_applied,
)

COURSE = {"to": 0.5, "end": (3, "iteration"), "steps": 2, "curve": "linear"}


def plan(**options):
    """Rules that are over after minibatch 3; layers are measured after minibatch 4."""
    return CompressionPlan(
        [
            Prune("l2", layers="/0", granularity=(8, 72), **COURSE, **options),
            Prune("l2", layers="/2", granularity=(8, 8), **COURSE, **options),
            Quantize("int8", layers="/4"),
        ]
    )


PLAN = plan(skip_blocks=True)


@pytest.fixture(autouse=True)
def faster(monkeypatch):
    """Makes blocks faster in some layers: in those of 24 outputs."""

    def measured(layer, W, shape):
        return block_choice.BlockChoice(
            shape, 2.0, 1.0 if layer.shape[0] == 24 else 3.0
        )

    monkeypatch.setattr(block_choice, "measured", measured)


def build():
    np.random.seed(0)
    return Divisible(
        L.Convolution2D(16, 24, 3, pad=1),
        F.relu,
        L.Convolution2D(24, 16, 1),
        F.relu,
        L.Linear(16 * 9, 5),
    )


class Training:
    """A model that is pruned while it trains."""

    def __init__(self, plan=PLAN, **options):
        self.model, self.iteration = build(), 0
        self.optimizer = chainer.optimizers.MomentumSGD(0.01).setup(self.model)
        self.compress = Compress(plan, self.optimizer, **options)
        self.random = np.random.RandomState(1)

    def step(self, n=1, observed=None):
        for _ in range(n):
            x = self.random.normal(size=(4, 16, 3, 3)).astype(np.float32)
            self.model.cleargrads()
            F.sum(F.square(self.model(x) - 1)).backward()
            self.optimizer.update()
            self.iteration += 1
            self.compress.advance(self.iteration, 0.0, observed)
        return self


def skips(model):
    x = np.ones((4, 16, 3, 3), "f")
    return [type(layer(y).creator).__name__ for layer, y in walked(model, x)]


def walked(model, x):
    for layer in model:
        if isinstance(layer, chainer.Link):
            yield layer, x
        x = layer(x)


DENSE = ["Convolution2DFunction", "Convolution2DFunction", "LinearFunction"]


def test_layers_skip_blocks_once_they_are_faster_so():
    training = Training()
    for iteration in range(1, 7):
        training.step()
        expected = ["BlockProduct", *DENSE[1:]] if iteration > 3 else DENSE
        assert skips(training.model) == expected, iteration
    lines = block_report(training.model).splitlines()
    assert [line[:8] for line in lines] == ["/0: skip", "/2: comp"]
    W = training.model[0].W
    assert (W.array == 0).mean() == 0.5
    assert not W.grad[W.array == 0].any()


def test_training_goes_on_as_without_skipped_blocks():
    one, other = (Training(each).step(12).model for each in (PLAN, plan()))
    for a, b in zip(one.params(), other.params(), strict=True):
        np.testing.assert_allclose(a.array, b.array, 1e-4, 1e-5)
        np.testing.assert_array_equal(a.array == 0, b.array == 0)


@pytest.mark.parametrize("halfway", [2, 3, 4, 6])
def test_a_resumed_run_goes_on_bit_for_bit(halfway, tmp_path):
    straight = Training().step(9)
    before = Training().step(halfway)
    after = Training()
    for name in ("model", "optimizer", "compress"):
        path = tmp_path / f"{name}.npz"
        chainer.serializers.save_npz(path, getattr(before, name))
        chainer.serializers.load_npz(path, getattr(after, name))
    after.iteration, after.random = before.iteration, before.random
    after.step(9 - halfway)
    assert skips(after.model) == skips(straight.model)
    for a, b in zip(after.model.params(), straight.model.params(), strict=True):
        np.testing.assert_array_equal(a.array, b.array)


def test_nothing_is_skipped_while_a_step_may_be_taken_back():
    training = Training(metric="loss", better="lower", tolerance=1.0)
    training.step(1, {"loss": 1.0}).step(2)
    # Two steps of the rule, each of which waits for the metric.
    training.step(1, {"loss": 1.5}).step(3)
    assert skips(training.model) == DENSE
    training.step(1, {"loss": 5.0}).step(1)
    # The last step was taken back, so the zeros are those of the first.
    assert skips(training.model)[0] == "BlockProduct"
    assert 0 < (training.model[0].W.array == 0).mean() < 0.5


@pytest.mark.parametrize("n_steps", [2, 6])
def test_applied_models_store_only_what_is_not_zero(n_steps, tmp_path):
    training = Training().step(n_steps)
    model, x = training.model, np.ones((4, 16, 3, 3), "f")
    small = apply(model, PLAN)
    is_packed = n_steps > 4
    assert ("W_blocks" in small[0]._persistent) == is_packed
    assert small[2].W.shape == (16, 24, 1, 1) and type(small[2]) is L.Convolution2D
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = small(x).array
        np.testing.assert_array_equal(y, model(x).array)
    if is_packed:
        assert small[0].W_blocks.size * 2 == model[0].W.size
        np.testing.assert_array_equal(small[0].W.array, model[0].W.array)
    path = tmp_path / "small.npz"
    chainer.serializers.save_npz(path, small)
    again = load_applied(path, build(), PLAN)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        np.testing.assert_array_equal(again(x).array, y)
    # Inputs of an applied model have gradients.
    leaf = chainer.Variable(x)
    F.sum(again(leaf)).backward()
    assert np.abs(leaf.grad).max() > 0


def test_models_are_prepared_for_layers_that_move():
    model = Training().step(6).model
    other = PLAN.prepare(build())
    assert model[0]._persistent == other[0]._persistent


def test_plans_remember_it(tmp_path):
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert CompressionPlan.load(path) == PLAN
    assert "blocks of 8 x 8, skipped" in str(PLAN)
    # Plans without it are saved as before, and so are the snapshots under them.
    assert "skip_blocks" not in plan().settings()[0]
    assert plan() != PLAN


def test_a_layer_that_loses_inputs_skips_no_blocks():
    channel = Prune("l2", layers="/0", to=0.5, granularity="channel")
    skip = Prune("l2", layers="/2", to=0.5, granularity=(8, 8), skip_blocks=True)
    both, model = CompressionPlan([channel, skip]), build()
    words = "/2 reads channels of /0, which granularity='channel' removes"
    with pytest.raises(ValueError, match=words):
        Compress(both, chainer.optimizers.SGD().setup(model))
    with pytest.raises(ValueError, match=words):
        apply(model, both)
    # No blocks of 5 outputs are skipped.
    last = Prune("l2", layers="/4", to=0.5, granularity=(5, 8), skip_blocks=True)
    channel = Prune("l2", layers="/2", to=0.5, granularity="channel")
    plan = CompressionPlan([channel, last])
    Compress(plan, chainer.optimizers.SGD().setup(model))
