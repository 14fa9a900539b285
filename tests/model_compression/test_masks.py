import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from mixed_precision import MixedPrecision, to_float16
from model_compression.masks import Mask, Masks


def trained(optimizer, half=False, goes_back=False):
    """Returns a layer, its masks, and what updates it once."""
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(6, 5))
    if half:
        to_float16(model)
    optimizer = optimizer.setup(model)
    masks = Masks(goes_back)
    masks.select({"/0/W": None})
    masks.add_to(optimizer)
    rng = np.random.default_rng(1)

    def update():
        for param in model.params():
            param.grad = rng.normal(size=param.shape).astype(param.dtype)
        optimizer.update()

    return model[0].W, masks, update


ZEROS = np.arange(30).reshape(5, 6) % 3 == 0


@pytest.mark.parametrize(
    "make",
    [
        chainer.optimizers.SGD,
        lambda: chainer.optimizers.MomentumSGD(0.1),
        lambda: chainer.optimizers.Adam(eps=1e-3),
        lambda: chainer.optimizers.RMSprop(0.1, eps=1e-3),
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_pruned_elements_stay_zero_with_their_state(make, half):
    optimizer = make()
    weight, masks, update = trained(optimizer, half)
    update()
    mask = masks.state_of("/0/W", weight)
    mask.prune(ZEROS, masks.params()["/0/W"])
    assert (weight.array[ZEROS] == 0).all()
    before = weight.array.copy()
    for _ in range(3):
        update()
        assert (weight.array[ZEROS] == 0).all()
        assert (weight.array[~ZEROS] != before[~ZEROS]).any()
        for value in (weight.update_rule.state or {}).values():
            assert (value[ZEROS] == 0).all()
            assert (value[~ZEROS] != 0).any()


@pytest.mark.parametrize("fp32_update", [False, True])
def test_float32_masters_are_zero_too(fp32_update):
    inner = chainer.optimizers.MomentumSGD(0.1)
    optimizer = inner if fp32_update else MixedPrecision(inner, loss_scale=1.0)
    if fp32_update:
        inner.use_fp32_update()
    weight, masks, update = trained(optimizer, half=True)
    update()
    masks.state_of("/0/W", weight).prune(ZEROS, [weight])
    for _ in range(3):
        update()
        master = (
            weight.update_rule._fp32_param.array
            if fp32_update
            else optimizer._masters.by_path()["/0/W"]
        )
        assert master.dtype == np.float32
        assert (master[ZEROS] == 0).all() and (weight.array[ZEROS] == 0).all()
        assert (master[~ZEROS] != 0).all()


def test_a_step_back_gives_values_back():
    weight, masks, update = trained(chainer.optimizers.SGD(0.1), goes_back=True)
    mask = masks.state_of("/0/W", weight)
    first, second = ZEROS, np.roll(ZEROS, 1, axis=1)
    mask.prune(first, [weight])
    update()
    before = weight.array.copy()
    mask.prune(second, [weight])
    update()
    assert (weight.array[first | second] == 0).all()
    mask.take_back([weight])
    np.testing.assert_array_equal(weight.array[second], before[second])
    np.testing.assert_array_equal(mask.pruned, first)
    update()
    assert (weight.array[second] != before[second]).all()
    assert (weight.array[first] == 0).all()


def test_values_that_overflow_do_not_become_nan():
    param = chainer.Parameter(np.array([[np.inf, 1.0]], np.float32))
    mask = Mask((1, 2), np.dtype(np.float32))
    mask.prune(np.array([[True, False]]), [param])
    assert param.array.tolist() == [[0, 1]]


def test_effects_are_means_over_minibatches():
    param = chainer.Parameter(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    mask = Mask((2, 2), np.dtype(np.float32), granularity="row")
    for gradient in ([[1, 1], [0, 0]], [[1, -1], [0, 1]]):
        param.grad = np.array(gradient, np.float32)
        mask.note(param)
    # |1 + 2|, |1 - 2| and |0|, |4|.
    assert mask.scores().ravel().tolist() == [2, 2]
    assert mask.scores().ravel().tolist() == [0, 0]


@pytest.mark.parametrize("half", [False, True])
def test_effects_are_those_of_the_loss_before_the_update(half):
    """By the definition |w g|: of weights before updates, without what hooks add."""
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(6, 5))
    inner = chainer.optimizers.SGD(0.5)
    if half:
        to_float16(model)
    optimizer = MixedPrecision(inner, loss_scale=1.0) if half else inner
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1e-2))
    masks = Masks(watches=True)
    masks.select({"/0/W": "element"})
    masks.add_to(optimizer)
    optimizer.add_hook(chainer.optimizer_hooks.Lasso(0.1))
    rng, expected = np.random.default_rng(1), 0
    weight = model[0].W
    for _ in range(3):
        for param in model.params():
            param.grad = rng.normal(size=param.shape).astype(param.dtype)
        # There are no masters before the first update.
        masters = optimizer._masters.by_path() if half else {}
        w = masters.get("/0/W", weight.array).astype(np.float64)
        expected = expected + abs(w * weight.grad.astype(np.float64)) / 3
        optimizer.update()
    found = masks.state_of("/0/W", weight).scores()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Non finite number")
def test_effects_are_those_of_minibatches_that_update():
    """By the definition, whatever Chainer's own loss scale is and wherever it skips."""
    model = chainer.Sequential(L.Linear(3, 2, initialW=2.0))
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    optimizer.loss_scaling()
    masks = Masks(watches=True)
    masks.select({"/0/W": "element"})
    masks.add_to(optimizer)
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(1, 3)).astype(np.float32) for _ in range(4)]
    xs[1][0, 0] = np.nan
    scales = []
    for x in xs:
        scales.append(optimizer._loss_scale)
        optimizer.update(lambda x: F.sum(model(x)), x)
    assert len({*scales}) > 2
    found = masks.state_of("/0/W", model[0].W).scores()
    expected = sum(abs(2 * x) for x in (xs[0], *xs[2:])) / 3
    np.testing.assert_allclose(found, np.broadcast_to(expected, (2, 3)), rtol=1e-6)
