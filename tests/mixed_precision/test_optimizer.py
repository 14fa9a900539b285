"""MixedPrecision stands for an optimizer, and skips steps that overflow."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

from divisible import Divisible
from mixed_precision import (
    DynamicLossScale,
    MixedPrecision,
    StaticLossScale,
    float32_loss,
    to_float16,
)
from tests.support.mixed_precision import give_gradients, make_model, pair, train


def test_overflow_skips_the_step():
    loss_scale = DynamicLossScale(1024)
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=loss_scale)
    optimizer.add_hook(lambda opt: pytest.fail("called"), name="hook")
    give_gradients(optimizer, reference, 0)
    before = [p.array.copy() for p in optimizer.target.params()]
    optimizer.target[2].W.grad[0, 0] = np.nan
    optimizer.update()
    for param, array in zip(optimizer.target.params(), before):
        np.testing.assert_array_equal(param.array, array)
    assert (float(loss_scale), optimizer.t, optimizer.n_skipped) == (512, 0, 1)
    assert not optimizer.is_safe_to_update()


def test_gradient_norm():
    optimizer, reference = pair(optimizers.SGD, loss_scale=256)
    give_gradients(optimizer, reference, 0)
    optimizer.update()
    squares = [
        float((p.grad.astype("d") ** 2).sum()) for p in reference.target.params()
    ]
    assert optimizer.gradient_norm == pytest.approx(sum(squares) ** 0.5, rel=1e-12)


def test_stands_for_the_optimizer():
    model = make_model(np.float16)
    optimizer = MixedPrecision(optimizers.MomentumSGD(0.5), loss_scale=4)
    assert optimizer.setup(model) is optimizer
    assert isinstance(optimizer, chainer.Optimizer)
    assert (optimizer.lr, optimizer.momentum, optimizer.target) == (0.5, 0.9, model)
    optimizer.lr = 0.25
    optimizer.new_epoch()
    assert optimizer.actual_optimizer.hyperparam.lr == 0.25
    assert (optimizer.epoch, optimizer.actual_optimizer.epoch) == (1, 1)
    optimizer.hyperparam.momentum = 0.5
    assert optimizer.momentum == 0.5
    optimizer.set_loss_scale(2)
    assert float(optimizer.loss_scale) == 2
    optimizer.loss_scaling(interval=7)
    assert isinstance(optimizer.loss_scale, DynamicLossScale)
    optimizer.loss_scale = 512
    assert isinstance(optimizer.loss_scale, StaticLossScale)
    optimizer.set_loss_scale(1000)
    with pytest.raises(ValueError, match="must be positive"):
        optimizer.loss_scale = -1
    assert float(optimizer.loss_scale) == 1000
    assert not optimizer.has_comm
    with pytest.raises(AttributeError):
        optimizer.no_such_thing  # noqa: B018


def test_updater_and_extensions_of_chainer(tmp_path):
    rng = np.random.RandomState(0)
    data = [(x.astype("e"), np.int32(x.sum() > 0)) for x in rng.normal(size=(64, 5))]
    model = to_float16(
        L.Classifier(make_model(), float32_loss(F.softmax_cross_entropy))
    )
    model.compute_accuracy = False
    optimizer = MixedPrecision(optimizers.MomentumSGD(0.1)).setup(model)
    updater = chainer.training.StandardUpdater(
        chainer.iterators.SerialIterator(data, 16), optimizer
    )
    shift = chainer.training.extensions.ExponentialShift("lr", 0.5)
    trainer = chainer.training.Trainer(updater, (2, "epoch"), out=str(tmp_path))
    trainer.extend(shift, trigger=(1, "epoch"))
    trainer.run()
    assert (optimizer.t, optimizer.epoch) == (8, 2)
    assert optimizer.lr == pytest.approx(0.1 * 0.25)


def test_several_stages_as_one_target(tmp_path):
    def make():
        np.random.seed(0)
        model = to_float16(Divisible(L.Linear(5, 6), F.relu, L.Linear(6, 3)))
        stages = [model.divide(0, 1), model.divide(2, 3)]
        optimizer = MixedPrecision(optimizers.Adam(), loss_scale=4)
        return model, optimizer.setup(stages)

    model, optimizer = make()
    train(model, optimizer, 3)
    assert sorted(optimizer._masters.by_path()) == ["/0/W", "/0/b", "/2/W", "/2/b"]
    chainer.serializers.save_npz(tmp_path / "target.npz", optimizer.target)
    again, other = make()
    chainer.serializers.load_npz(tmp_path / "target.npz", other.target)
    np.testing.assert_array_equal(again[2].W.array, model[2].W.array)


def test_bad_arguments():
    with pytest.raises(TypeError, match="must be a Chainer optimizer"):
        MixedPrecision(L.Linear(2, 2))
    with pytest.raises(ValueError, match="timeout"):
        MixedPrecision(optimizers.SGD(), timeout=0)
    with pytest.raises(TypeError, match="comm must be"):
        MixedPrecision(optimizers.SGD(), comm=2)
    with pytest.raises(TypeError, match="link must be"):
        MixedPrecision(optimizers.SGD()).setup(3)
    with pytest.raises(RuntimeError, match="set up"):
        MixedPrecision(optimizers.SGD()).update()


def test_attributes_that_a_load_sets_can_be_set_back():
    """Those of the optimizer and of its parts, as after a dry run of a load."""
    model = make_model(np.float16)
    scale = DynamicLossScale(2**17, growth_interval=3)
    optimizer = MixedPrecision(optimizers.SGD(), loss_scale=scale).setup(model)
    train(model, optimizer, 2)
    writer = chainer.serializers.DictionarySerializer()
    optimizer.serialize(writer)
    saved = float(scale)
    train(model, optimizer, 5)
    parts = [vars(part) for part in (optimizer, *optimizer.loaded_parts())]
    kept = [dict(attributes) for attributes in parts]
    before, buffers = dict(vars(scale)), optimizer._masters.buffers
    optimizer.serialize(chainer.serializers.NpzDeserializer(writer.target))
    assert float(scale) == saved and optimizer._masters.buffers is None
    for attributes, its in zip(parts, kept):
        attributes.update(its)
    assert float(scale) != saved and vars(scale) == before
    assert optimizer._masters.buffers is buffers
