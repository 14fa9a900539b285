"""MixedPrecision does what Chainer's optimizer would do in float32."""

import copy
import gc
import subprocess
import sys
import tracemalloc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from chainer import optimizers

from divisible import Divisible
from mixed_precision import (
    DynamicLossScale,
    MixedPrecision,
    MomentumSGD16,
    StaticLossScale,
    float32_loss,
    to_float16,
)

N_STEPS = 4

OPTIMIZERS = [
    optimizers.AMSBound,
    optimizers.AMSGrad,
    optimizers.AdaBound,
    optimizers.AdaDelta,
    optimizers.AdaGrad,
    optimizers.Adam,
    lambda: optimizers.AdamW(weight_decay_rate=0.01),
    optimizers.CorrectedMomentumSGD,
    lambda: optimizers.MSVAG(lr=0.01),
    optimizers.MomentumSGD,
    optimizers.NesterovAG,
    optimizers.RMSprop,
    optimizers.RMSpropGraves,
    optimizers.SGD,
    optimizers.SMORMS3,
]

HOOKS = {
    "none": [],
    "decay": [hooks.WeightDecay(0.01)],
    "lasso": [hooks.Lasso(0.01)],
    "noise": [hooks.GradientNoise(0.3)],
    "lars": [hooks.GradientLARS()],
    "hard clipping": [hooks.GradientHardClipping(-0.5, 0.5)],
    "several": [hooks.Lasso(0.01), hooks.GradientLARS(), hooks.WeightDecay(0.01)],
}


def make_model(dtype=np.float32):
    """Three layers of which the middle one normalizes."""
    np.random.seed(0)
    model = Divisible(
        L.Linear(5, 7), L.BatchNormalization(7), L.Linear(7, 3, nobias=True)
    )
    return to_float16(model) if dtype == np.float16 else model


def pair(make_optimizer, hooks=(), **options):
    """A float16 model in mixed precision, and its masters as a float32 model."""
    model = make_model(np.float16)
    twin = make_model()
    for path, param in model.namedparams():
        dict(twin.namedparams())[path].array[...] = param.array
    optimizer = MixedPrecision(make_optimizer(), **options).setup(model)
    reference = make_optimizer().setup(twin)
    for hook in hooks:
        optimizer.add_hook(hook)
        reference.add_hook(hook)
    return optimizer, reference


def give_gradients(optimizer, reference, step, size=1.0):
    """The same gradients, scaled and rounded, and unscaled."""
    rng = np.random.RandomState(step)
    scale = float(optimizer.loss_scale)
    twins = dict(reference.target.namedparams())
    for path, param in optimizer.target.namedparams():
        gradient = rng.normal(scale=size, size=param.shape) * scale
        param.grad = gradient.astype(param.dtype)
        param._loss_scale = scale
        twins[path].grad = param.grad.astype(np.float32) / np.float32(scale)


def update_both(optimizer, reference, step):
    np.random.seed(step)
    optimizer.update()
    np.random.seed(step)
    reference.update()


def assert_equal(optimizer, reference, rtol=0):
    masters = optimizer._masters.by_path()
    for path, twin in reference.target.namedparams():
        param = dict(optimizer.target.namedparams())[path]
        master = masters.get(path, param.array)
        np.testing.assert_allclose(master, twin.array, rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(param.array, master.astype(param.dtype))


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scale", [1, 1024])
def test_every_optimizer(make_optimizer, scale):
    optimizer, reference = pair(make_optimizer, loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)
    assert (optimizer.t, optimizer.n_skipped) == (N_STEPS, 0)


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize(
    "make_optimizer", [optimizers.MomentumSGD, optimizers.Adam, optimizers.AdaGrad]
)
@pytest.mark.parametrize("scale", [1, 2**14])
def test_every_hook(make_optimizer, name, scale):
    optimizer, reference = pair(make_optimizer, HOOKS[name], loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


@pytest.mark.parametrize("before", [[], [hooks.WeightDecay(0.5)]])
@pytest.mark.parametrize("scale", [1, 2**14])
def test_gradient_clipping(before, scale):
    """The norm is summed in another order, so that the last bit may differ."""
    clipping = [*before, hooks.GradientClipping(1.5), hooks.Lasso(0.01)]
    optimizer, reference = pair(optimizers.MomentumSGD, clipping, loss_scale=scale)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference, rtol=1e-6)


def test_clipping_leaves_small_gradients_alone():
    clipping = [hooks.GradientClipping(1e3)]
    optimizer, reference = pair(optimizers.SGD, clipping, loss_scale=2)
    give_gradients(optimizer, reference, 0)
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


def test_hooks_of_every_kind():
    """After the update, for one parameter only, with the optimizer as argument."""
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)

    def clip_weights(opt):
        for param in opt.target.params():
            np.clip(param.array, -0.3, 0.3, out=param.array)

    def replace_gradients(opt):
        for path, param in opt.target.namedparams():
            param.grad = None if path == "/0/W" else param.grad * 3

    for o in (optimizer, reference):
        o.add_hook(clip_weights, timing="post")
        o.add_hook(replace_gradients)
        o.target[2].W.update_rule.add_hook(hooks.WeightDecay(0.1))
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)
    optimizer.remove_hook("clip_weights")
    assert "clip_weights" not in optimizer._hookable._post_update_hooks


def test_parameters_with_rules_of_their_own():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)
    for o in (optimizer, reference):
        o.target[0].b.update_rule.hyperparam.lr = 0.5
        o.target[1].gamma.update_rule.enabled = False
        o.target[2].W.update_rule = optimizers.Adam().create_update_rule()
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        update_both(optimizer, reference, step)
        if step == 1:
            for o in (optimizer, reference):
                o.target[0].disable_update()
        if step == 2:
            for o in (optimizer, reference):
                o.target[0].enable_update()
                o.lr = 0.3
    assert_equal(optimizer, reference)


def test_no_gradient_is_a_gradient_of_zero():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=8)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        if step == 2:
            optimizer.target[0].cleargrads()
            reference.target[0].cleargrads()
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


def test_gradient_of_any_memory_layout():
    optimizer, reference = pair(optimizers.SGD, loss_scale=1)
    give_gradients(optimizer, reference, 0)
    W = optimizer.target[0].W
    W.grad = np.asfortranarray(W.grad)
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


class Shared(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(3, 3)
            self.b = chainer.Chain(inner=self.a)


def test_shared_parameter_is_updated_once():
    model = to_float16(Shared())
    before = model.a.W.array.astype(np.float32)
    optimizer = MixedPrecision(optimizers.SGD(0.5), loss_scale=4).setup(model)
    optimizer.add_hook(hooks.WeightDecay(0.25))
    for param in model.params():
        param.grad = np.full_like(param.array, 4)
        param._loss_scale = 4
    optimizer.update()
    expected = (before - 0.5 * (1 + 0.25 * before)).astype(np.float16)
    np.testing.assert_array_equal(model.a.W.array, expected)
    assert model.a.W.update_rule.t == 1


def test_weights_changed_by_others_are_taken_over():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=2)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        if step == 2:
            W, twin = optimizer.target[0].W, reference.target[0].W
            W.array[0] = 0.25
            twin.array[0] = 0.25
            optimizer.target[2].W.array = np.full_like(optimizer.target[2].W.array, 2)
            reference.target[2].W.array[...] = 2
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


def test_float64_parameters():
    with chainer.using_config("dtype", np.float64):
        model, twin = (L.Linear(4, 3, initialW=1) for _ in range(2))
    optimizer = MixedPrecision(optimizers.Adam(), loss_scale=2).setup(model)
    reference = optimizers.Adam().setup(twin)
    for step in range(N_STEPS):
        rng = np.random.RandomState(step)
        for param, same in zip(model.params(), twin.params()):
            same.grad = rng.normal(size=param.shape)
            param.grad = same.grad * 2
            param._loss_scale = 2
        update_both(optimizer, reference, step)
    np.testing.assert_array_equal(model.W.array, twin.W.array)
    assert model.W.array.dtype == np.float64


@pytest.mark.parametrize("gradient", [1e200, 1.3e154])
def test_float64_gradients_whose_squares_overflow(gradient):
    """Those of each parameter, or their sum over all."""
    with chainer.using_config("dtype", np.float64):
        model = L.Linear(4, 3)
    optimizer = MixedPrecision(optimizers.SGD(), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.zeros(param.shape)
        param.grad.flat[0] = gradient
    optimizer.update()
    assert (optimizer.t, optimizer.n_skipped) == (0, 1)


def test_parameter_added_after_the_first_update():
    optimizer, reference = pair(optimizers.SGD, loss_scale=1)
    give_gradients(optimizer, reference, 0)
    optimizer.update()
    with optimizer.target.init_scope():
        optimizer.target.new = chainer.Parameter(np.ones(3, np.float16))
    for _ in range(2):
        with pytest.raises(ValueError, match="/new came after the first update"):
            optimizer.update()
    optimizer.setup(optimizer.target).update()
    assert optimizer.t == 1


def test_error_of_the_first_hook_is_not_hidden(monkeypatch):
    optimizer, reference = pair(optimizers.SGD, HOOKS["decay"], loss_scale=1)
    give_gradients(optimizer, reference, 0)

    def fail(group):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("mixed_precision.flat.Group._make_float32_views", fail)
        with pytest.raises(MemoryError):
            optimizer.update()
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


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


def test_overflow_at_the_smallest_scale_names_the_parameters():
    optimizer, reference = pair(optimizers.SGD, loss_scale=DynamicLossScale(4))
    for scale in (4, 2):
        give_gradients(optimizer, reference, 0)
        optimizer.target[2].W.grad[...] = np.inf
        assert float(optimizer.loss_scale) == scale
        optimizer.update()
    give_gradients(optimizer, reference, 0)
    optimizer.target[2].W.grad[...] = np.inf
    with pytest.raises(FloatingPointError, match=r"scale, 1: /2/W\. It is not"):
        optimizer.update()


def test_gradient_norm():
    optimizer, reference = pair(optimizers.SGD, loss_scale=256)
    give_gradients(optimizer, reference, 0)
    optimizer.update()
    squares = [
        float((p.grad.astype("d") ** 2).sum()) for p in reference.target.params()
    ]
    assert optimizer.gradient_norm == pytest.approx(sum(squares) ** 0.5, rel=1e-12)


def train(model, optimizer, n_steps):
    rng = np.random.RandomState(1)
    lossfun = float32_loss(F.softmax_cross_entropy)
    for _ in range(n_steps):
        x, t = rng.normal(size=(8, 5)).astype("e"), rng.randint(0, 3, 8).astype("i")
        optimizer.update(lambda x, t: lossfun(model(x), t), x, t)


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
    "saved, resumed, scale",
    [
        (StaticLossScale(65536), StaticLossScale(1024), 1024),
        (StaticLossScale(65536), DynamicLossScale(4), 65536),
        (DynamicLossScale(65536), StaticLossScale(1024), 1024),
        (DynamicLossScale(2), DynamicLossScale(2**16, minimum=16), 16),
        (DynamicLossScale(2**20), DynamicLossScale(4, maximum=2**16), 2**16),
    ],
)
def test_resumes_with_another_loss_scale(tmp_path, saved, resumed, scale):
    def make(loss_scale):
        optimizer = MixedPrecision(optimizers.SGD(), loss_scale=loss_scale)
        return optimizer.setup(make_model(np.float16))

    chainer.serializers.save_npz(tmp_path / "optimizer.npz", make(saved))
    optimizer = make(resumed)
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
    assert float(optimizer.loss_scale) == scale


def test_overflows_at_another_static_scale_do_not_count(tmp_path):
    failing = StaticLossScale(65536)
    for _ in range(StaticLossScale.patience - 1):
        failing.overflowed(["/0/W"])
    chainer.serializers.save_npz(tmp_path / "scale.npz", failing)
    smaller, same = StaticLossScale(1024), StaticLossScale(65536)
    for loss_scale in (smaller, same):
        chainer.serializers.load_npz(tmp_path / "scale.npz", loss_scale)
    smaller.overflowed(["/0/W"])
    assert smaller.n_skipped == 1
    with pytest.raises(FloatingPointError, match="choose a smaller scale"):
        same.overflowed(["/0/W"])


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


@pytest.mark.parametrize("size", [None, 4])
def test_copies_with_one_array_are_refused(size):
    layer = L.Linear(size, 4)
    model = chainer.ChainList(layer, layer.copy())
    optimizer = MixedPrecision(optimizers.SGD())
    with pytest.raises(ValueError, match="/0/[Wb] and /1/[Wb] are copies with one"):
        optimizer.setup(model)
    optimizer.setup(chainer.ChainList(layer, layer.copy(mode="init")))


def test_loss_in_float32_of_arguments_by_name():
    y, t = np.zeros((2, 3), np.float16), np.array([0, 2], np.int32)
    lossfun = float32_loss(F.softmax_cross_entropy)
    assert lossfun(x=y, t=t).dtype == np.float32


def test_eps_of_adam_below_float32():
    model = Divisible(L.Linear(2, 2, nobias=True))
    model[0].W.array = np.ones((2, 2))
    optimizer = MixedPrecision(optimizers.Adam(eps=1e-50), loss_scale=1).setup(model)
    model[0].W.grad = np.ones((2, 2))
    optimizer.update()
    assert (model[0].W.array < 1).all()


def test_to_float16_after_setup():
    model = make_model()
    optimizer = MixedPrecision(optimizers.MomentumSGD(), loss_scale=1).setup(model)
    for dtype in (np.float32, np.float16):
        for param in model.params():
            param.grad = np.ones_like(param.array)
        optimizer.update()
        assert model[0].W.dtype == dtype
        to_float16(model)
    assert optimizer.t == 2


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
    with pytest.raises(ValueError, match="must be a power of two"):
        optimizer.loss_scale = 500
    assert float(optimizer.loss_scale) == 512
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


class TestScaleOfGradients:
    def make(self, **options):
        model = make_model(np.float16)
        return model, MixedPrecision(optimizers.SGD(), **options).setup(model)

    def loss(self, model):
        x, t = np.ones((4, 5), np.float16), np.zeros(4, np.int32)
        model.cleargrads()
        return float32_loss(F.softmax_cross_entropy)(model(x), t)

    def test_by_chainer(self):
        model, optimizer = self.make(loss_scale=DynamicLossScale(256))
        self.loss(model).backward(loss_scale=float(optimizer.loss_scale))
        optimizer.update()
        assert optimizer.t == 1

    def test_missing(self):
        model, optimizer = self.make(loss_scale=256)
        self.loss(model).backward()
        with pytest.raises(ValueError, match="not scaled, but the loss scale is 256"):
            optimizer.update()

    def test_another_one(self):
        model, optimizer = self.make(loss_scale=256)
        self.loss(model).backward(loss_scale=16)
        with pytest.raises(ValueError, match=r"scaled by \[16.0\], but .* is 256"):
            optimizer.update()

    def test_forget_does_not_pass_it_on(self):
        model, optimizer = self.make(loss_scale=256)
        x, t = np.ones((4, 5), np.float16), np.zeros(4, np.int32)
        x = chainer.Variable(x)
        y = model[2](model[1](F.forget(model[0], x)))
        model.cleargrads()
        optimizer.backward(float32_loss(F.softmax_cross_entropy)(y, t))
        assert model[0].W._loss_scale is None
        scaled = model[0].W.grad.astype("f")
        before = optimizer.target[0].W.array.astype("f")
        optimizer.update()
        expected = (before - np.float32(0.01) * (scaled / 256)).astype("e")
        np.testing.assert_array_equal(model[0].W.array, expected)

    def test_float16_loss(self):
        model, optimizer = self.make(loss_scale=256)
        with pytest.raises(TypeError, match="compute it in float32"):
            optimizer.backward(F.sum(model(np.ones((4, 5), np.float16))))


@pytest.mark.parametrize("scale", [0, -2, float("nan"), float("inf"), 3])
def test_scales_that_are_none(scale):
    for make in (StaticLossScale, DynamicLossScale):
        with pytest.raises(ValueError, match="must be a power of two"):
            make(scale)
    with pytest.raises(ValueError, match="must be a power of two"):
        MixedPrecision(optimizers.SGD(), loss_scale=scale)


@pytest.mark.parametrize("scale", [2.0**127, 2.0**-127])
def test_scales_beyond_float32(scale):
    with pytest.raises(ValueError, match="must be from 2.*-126 to 2"):
        StaticLossScale(scale)


def test_bad_arguments():
    with pytest.raises(TypeError, match="scale must be a number"):
        StaticLossScale("1024")
    with pytest.raises(ValueError, match="not between the minimum 4"):
        DynamicLossScale(2, minimum=4)
    with pytest.raises(ValueError, match="growth_interval"):
        DynamicLossScale(growth_interval=0)
    with pytest.raises(ValueError, match="factor"):
        DynamicLossScale(factor=1)
    with pytest.raises(TypeError, match="must be a Chainer optimizer"):
        MixedPrecision(L.Linear(2, 2))

    class WarmsUp(optimizers.SGD):
        def update(self, lossfun=None, *args, **kwds):
            super().update(lossfun, *args, **kwds)

    with pytest.raises(TypeError, match="WarmsUp has an update of its own"):
        MixedPrecision(WarmsUp())
    scaled = optimizers.SGD()
    scaled.set_loss_scale(4)
    with pytest.raises(ValueError, match="loss scale of its own"):
        MixedPrecision(scaled)
    with pytest.raises(ValueError, match="timeout"):
        MixedPrecision(optimizers.SGD(), timeout=0)
    with pytest.raises(TypeError, match="comm must be"):
        MixedPrecision(optimizers.SGD(), comm=2)
    with pytest.raises(TypeError, match="link must be"):
        MixedPrecision(optimizers.SGD()).setup(3)
    with pytest.raises(RuntimeError, match="set up"):
        MixedPrecision(optimizers.SGD()).update()


WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = None
import chainer.links as L, chainer.optimizers, numpy as np
from mixed_precision import MixedPrecision
model = L.Linear(2, 2)
optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=1).setup(model)
for param in model.params():
    param.grad = np.ones_like(param.array)
optimizer.update()
optimizer.close()
print(optimizer.t)
"""


def test_one_process_needs_no_mpi():
    command = [sys.executable, "-c", WITHOUT_MPI]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1"


def test_integer_parameters():
    link = chainer.Link()
    with link.init_scope():
        link.table = chainer.Parameter(np.arange(3))
    with pytest.raises(TypeError, match="/table is of dtype int"):
        MixedPrecision(optimizers.SGD()).setup(link)
    with pytest.raises(TypeError, match="/table is of dtype int"):
        to_float16(link)


def test_weights_too_large_for_float16():
    with pytest.raises(OverflowError, match="/W"):
        to_float16(L.Linear(2, 2, initialW=1e6))
    later = to_float16(L.Linear(None, 2, initialW=1e6))
    with pytest.raises(OverflowError, match="that is sized now"):
        later(np.ones((1, 3), np.float16))


@pytest.mark.parametrize("make_optimizer", [optimizers.MomentumSGD, optimizers.Adam])
def test_no_array_is_allocated_after_the_first_step(make_optimizer):
    """Small objects of Python come and go, but nothing as large as a parameter."""
    n = 200
    model = to_float16(Divisible(*[L.Linear(n, n) for _ in range(5)]))
    optimizer = MixedPrecision(make_optimizer(), loss_scale=DynamicLossScale(4))
    optimizer.setup(model)
    optimizer.add_hook(hooks.GradientClipping(1.0))
    for param in model.params():
        param.grad = np.ones_like(param.array)
        param._loss_scale = 4
    for _ in range(3):
        optimizer.update()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            optimizer.update()
            after, peak = tracemalloc.get_traced_memory()
            # The smallest array of a parameter's size would be 80,000 bytes.
            assert peak - before < 20_000
        assert after - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make_optimizer", [optimizers.Adam, optimizers.RMSprop])
def test_snapshot_of_stages_continues_undivided_and_on_another_cut(make_optimizer):
    """What two stages saved, three stages and the undivided model load."""

    def make(cuts):
        np.random.seed(0)
        model = to_float16(Divisible(*[L.Linear(5, 5) for _ in range(3)]))
        stages = [model.divide(a, b) for a, b in zip(cuts, cuts[1:])]
        made = [
            MixedPrecision(make_optimizer(), DynamicLossScale(64, 3)).setup(stage)
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


@pytest.mark.parametrize("name", ["none", "decay", "clipping"])
@pytest.mark.parametrize("make_optimizer", [*OPTIMIZERS, MomentumSGD16])
def test_bytes_of_updates(make_optimizer, name):
    """What is planned for is what there is."""
    # Nothing that has to be padded.
    layers = L.Linear(8, 16, nobias=True), L.BatchNormalization(64)
    model = to_float16(Divisible(*layers))
    optimizer = MixedPrecision(make_optimizer()).setup(model)
    for hook in [hooks.GradientClipping(1.0)] if name == "clipping" else HOOKS[name]:
        optimizer.add_hook(hook)
    planned = sum(map(optimizer.update_bytes, model.params()))
    for param in model.params():
        param.grad = np.ones_like(param.array)
        param._loss_scale = float(optimizer.loss_scale)
    optimizer.update()
    held = 0
    for group in optimizer._masters.buffers.groups:
        # Weights of float32 are their own master.
        copies = [group._unscaled, group._float32 if group.is_half else None]
        held += sum(array.nbytes for array in copies if array is not None)
    for param in model.params():
        states = (param.update_rule.state or {}).values()
        held += sum(s.nbytes for s in states if isinstance(s, np.ndarray))
    assert planned == held


@pytest.mark.parametrize("dtype", [None, np.float16, np.float64])
def test_weights_that_are_made_later_in_float16(dtype):
    initializer = chainer.initializers.HeNormal(dtype=dtype)
    weights = []
    for n_in in (4, None):
        np.random.seed(0)
        model = to_float16(Divisible(L.Linear(n_in, 3, initialW=initializer)))
        model(np.ones((2, 4), np.float16))
        weights.append(model[0].W.array)
        assert weights[-1].dtype == np.float16
    np.testing.assert_array_equal(*weights)


def test_copies_of_a_parameter_in_two_stages_of_a_rank():
    """Both are updated; the norm counts them once."""
    stages = [to_float16(Divisible(L.Linear(3, 3, initialW=1))) for _ in range(2)]
    optimizer = MixedPrecision(optimizers.MomentumSGD(0.5), 4).setup(stages)
    for param in optimizer.target.params():
        param.grad = np.full(param.shape, 4, np.float16)
        param._loss_scale = 4
    optimizer.update()
    for stage in stages:
        np.testing.assert_array_equal(stage[0].W.array, np.full((3, 3), 0.5, "e"))
    assert optimizer.gradient_norm == pytest.approx(12**0.5)
    stages[0][0].W.grad[0, 0] = np.inf
    optimizer.update()
    assert (optimizer.t, optimizer.n_skipped) == (1, 1)
