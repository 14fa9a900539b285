"""Masters go into snapshots and come out of them, to the bit."""

import copy
import pickle

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

from divisible import Divisible
from mixed_precision import DynamicLossScale, MixedPrecision, MomentumSGD16, to_float16
from tests.support.mixed_precision import give_gradients, make_model, pair, train


@pytest.mark.parametrize(
    "make_optimizer", [optimizers.MomentumSGD, optimizers.AdaGrad, MomentumSGD16]
)
def test_snapshot_continues_bit_for_bit(tmp_path, make_optimizer):
    def make():
        model = make_model(np.float16)
        scale = DynamicLossScale(2**17, growth_interval=3)
        return model, MixedPrecision(make_optimizer(), loss_scale=scale).setup(model)

    model, optimizer = make()
    train(model, optimizer, 8)
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    chainer.serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    scale = float(optimizer.loss_scale)
    train(model, optimizer, 5)

    resumed, resumed_optimizer = make()
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", resumed_optimizer)
    chainer.serializers.load_npz(tmp_path / "model.npz", resumed)
    assert float(resumed_optimizer.loss_scale) == scale
    train(resumed, resumed_optimizer, 5)
    for a, b in zip(model.params(), resumed.params()):
        np.testing.assert_array_equal(a.array, b.array)
    masters, again = optimizer._masters.by_path(), resumed_optimizer._masters.by_path()
    assert masters.keys() == again.keys()
    for path, master in masters.items():
        np.testing.assert_array_equal(master, again[path])
    assert vars(optimizer.loss_scale) == vars(resumed_optimizer.loss_scale)
    assert (optimizer.t, optimizer.n_skipped) == (
        resumed_optimizer.t,
        resumed_optimizer.n_skipped,
    )


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_copy_continues_bit_for_bit(dtype, copied):
    found = []
    for copies in (False, True):
        model = make_model(dtype)
        optimizer = MixedPrecision(optimizers.Adam(), loss_scale=1).setup(model)
        for step in range(4):
            if copies and step == 2:
                model, optimizer = copied((model, optimizer))
            rng = np.random.RandomState(step)
            for _, param in sorted(model.namedparams()):
                param.grad = rng.normal(size=param.shape).astype(param.dtype)
            optimizer.update()
        arrays = [param.array for _, param in sorted(model.namedparams())]
        found.append(arrays + [each for _, each in sorted(optimizer.masters().items())])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_snapshot_is_keyed_by_path(tmp_path):
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=4)
    give_gradients(optimizer, reference, 0)
    optimizer.update()
    chainer.serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    with np.load(tmp_path / "optimizer.npz") as file:
        assert {"0/W/master", "0/W/v", "2/W/master", "1/gamma/v"} <= set(file)
        assert "1/gamma/master" not in file
        master = optimizer._masters.by_path()["/0/W"]
        np.testing.assert_array_equal(file["0/W/master"], master)


# Chainer cannot load a snapshot from before the first update of a rule with state.
@pytest.mark.parametrize("dtype", [None, np.float16, chainer.mixed16])
def test_uninitialized_parameters(tmp_path, dtype):
    with chainer.using_config("dtype", dtype or np.float32):
        check_uninitialized_parameters(tmp_path, convert=dtype is None)


def check_uninitialized_parameters(tmp_path, convert):
    def make():
        np.random.seed(2)
        model = chainer.Sequential(L.Linear(None, 4), L.Linear(4, 3))
        model = to_float16(model) if convert else model
        return model, MixedPrecision(optimizers.SGD(), loss_scale=8).setup(model)

    model, optimizer = make()
    chainer.serializers.save_npz(tmp_path / "before.npz", optimizer)
    train(model, optimizer, 3)
    assert model[0].W.dtype == np.float16
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    chainer.serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
    train(model, optimizer, 2)

    resumed, resumed_optimizer = make()
    chainer.serializers.load_npz(tmp_path / "before.npz", resumed_optimizer)
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", resumed_optimizer)
    chainer.serializers.load_npz(tmp_path / "model.npz", resumed)
    train(resumed, resumed_optimizer, 2)
    for a, b in zip(model.params(), resumed.params()):
        np.testing.assert_array_equal(a.array, b.array)


def test_saved_again_before_an_update(tmp_path):
    model = make_model(np.float16)
    optimizer = MixedPrecision(optimizers.SGD(0.01), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.full_like(param.array, 0.01)
    optimizer.update()
    other = MixedPrecision(optimizers.SGD(0.01), loss_scale=1)
    other.setup(make_model(np.float16))
    for name in ("first", "second"):
        chainer.serializers.save_npz(tmp_path / f"{name}.npz", optimizer)
        optimizer = other
        chainer.serializers.load_npz(tmp_path / f"{name}.npz", optimizer)
    first, second = (np.load(tmp_path / f"{name}.npz") for name in ("first", "second"))
    masters = [key for key in first.files if key.endswith("master")]
    assert any((first[key] != first[key].astype("e")).any() for key in masters)
    for key in masters:
        np.testing.assert_array_equal(first[key], second[key])


@pytest.mark.parametrize("make_optimizer", [optimizers.Adam, optimizers.RMSprop])
def test_snapshot_of_stages_continues_undivided_and_on_another_cut(make_optimizer):
    """What two stages saved, three stages and the undivided model load."""

    def make(cuts):
        np.random.seed(0)
        model = to_float16(Divisible(*[L.Linear(5, 5) for _ in range(3)]))
        stages = [model.divide(a, b) for a, b in zip(cuts, cuts[1:])]
        made = [
            MixedPrecision(
                make_optimizer(), loss_scale=DynamicLossScale(64, growth_interval=3)
            ).setup(stage)
            for stage in stages
        ]
        return model, stages, made

    def run(model, made, n_steps, seed):
        rng = np.random.RandomState(seed)
        for _ in range(n_steps):
            for _, param in sorted(model.namedparams()):
                param.grad = rng.normal(size=param.shape).astype("e")
                param._loss_scale = float(made[0].loss_scale)
            for optimizer in made:
                optimizer.update()

    model, stages, made = make([0, 2, 3])
    run(model, made, 4, seed=1)
    saved = {}
    for stage, optimizer in zip(stages, made):
        writer = chainer.serializers.DictionarySerializer(saved)
        optimizer.serialize(writer["optimizer"])
        stage.serialize(writer["model"])
    # As a file would: neither the writer's arrays nor the same for two readers.
    saved = copy.deepcopy(saved)
    run(model, made, 3, seed=2)
    for cuts in ([0, 3], [0, 1, 2, 3]):
        again, other_stages, other = make(cuts)
        for stage, optimizer in zip(other_stages, other):
            reader = chainer.serializers.NpzDeserializer(copy.deepcopy(saved))
            optimizer.serialize(reader["optimizer"])
            stage.serialize(reader["model"])
        run(again, other, 3, seed=2)
        for a, b in zip(model.params(), again.params()):
            np.testing.assert_array_equal(a.array, b.array)
            assert a.update_rule.t == b.update_rule.t == 7


def test_masters_that_are_changed_are_those_of_the_next_update():
    """Also where parameters keep their shapes, and buffers could stay."""
    model = make_model(np.float16)
    optimizer = MixedPrecision(optimizers.SGD(0.5), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.zeros_like(param.array)
    optimizer.update()
    factor = np.float32(1 + 2**-14)
    expected = {k: v * factor for k, v in optimizer._masters.by_path().items()}
    optimizer.change_masters(lambda path, master: master * factor)
    optimizer.update()
    found = optimizer._masters.buffers.masters()
    assert found.keys() == expected.keys() == {"/0/W", "/0/b", "/2/W"}
    for path, master in expected.items():
        np.testing.assert_array_equal(found[path], master)


def test_a_master_of_another_shape_is_not_written():
    """The rounded weights would stand for it, and what it knows more be lost."""
    model = make_model(np.float16)
    optimizer = MixedPrecision(optimizers.SGD(0.5), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.zeros_like(param.array)
    optimizer.update()
    model[0].W.cleargrad()
    model[0].W.array = model[0].W.array[1:]
    with pytest.raises(ValueError, match="the master of /0/W is .* but the parameter"):
        optimizer.serialize(chainer.serializers.DictionarySerializer())
