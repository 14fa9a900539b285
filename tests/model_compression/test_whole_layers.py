"""Stored layers, computed in whole numbers outside of training."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import whole_numbers
from chainer_kernels.functions import whole_layers
from chainer_kernels.geometry import Geometry
from divisible import Divisible
from model_compression import (
    Compress,
    CompressionPlan,
    Quantize,
    apply,
    int8_report,
)
from tests.support import kernels
from tests.support.whole_numbers import choose, offer

BOTH = [Quantize("int8", targets=["weight", "input"])]


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    offer(monkeypatch)
    return monkeypatch


@pytest.fixture
def calls(monkeypatch):
    """The shapes that were computed in whole numbers."""
    found = []
    for name in ("linear", "convolution"):
        compute = getattr(whole_layers, name)

        def noted(x, compute=compute, **options):
            found.append(x.shape)
            return compute(x, **options)

        monkeypatch.setattr(whole_layers, name, noted)
    return found


def trained(model, rules, x):
    """The model with fake quantization, and what apply makes of it."""
    plan = CompressionPlan(rules)
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    compress = Compress(plan, optimizer)
    for iteration in (1, 2):
        model.cleargrads()
        F.mean(F.square(model(x) - 1)).backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
    return model, apply(model, plan)


def samples(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def layer(rules=BOTH, n_inputs=30, n_outputs=20, **options):
    np.random.seed(0)
    x = samples(8, n_inputs)
    model = chainer.Sequential(L.Linear(n_inputs, n_outputs, **options))
    return *trained(model, rules, x), x


def inference(model, x):
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(x).array


@given(
    st.sampled_from(["int8", "int5", "int2"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([3, 70, 700]),
    st.booleans(),
)
def test_outputs_are_those_of_the_model(
    method, symmetric, per_channel, with_bias, nobias, n_inputs, is_whole
):
    targets = ["weight", "input", *["bias"] * with_bias]
    options = {"symmetric": symmetric, "per_channel": per_channel}
    rules = [Quantize(method, targets=targets, **options)]
    model, small, x = layer(rules, n_inputs, nobias=nobias)
    choose((8, n_inputs), (20, n_inputs), is_whole)
    with chainer.using_config("train", False):
        # With a graph it computes as before; whole numbers come beside it.
        before, expected = small(x).array, model(x).array
    found = inference(small, x)
    np.testing.assert_array_equal(before, expected)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest)


def test_nothing_changes_with_a_graph_or_without_kernels(calls, anywhere):
    model, small, x = layer()
    with chainer.using_config("train", False):
        expected = model(x).array
        np.testing.assert_array_equal(small(x).array, expected)
    with chainer_kernels.disabled():
        np.testing.assert_array_equal(inference(small, x), inference(model, x))
    anywhere.setattr(whole_numbers, "instructions", lambda: None)
    np.testing.assert_array_equal(inference(small, x), expected)
    assert calls == []
    anywhere.undo()


def test_training_is_as_it_was(calls):
    model, _, x = layer()
    inference(model, x)
    assert calls == []


@pytest.mark.parametrize(
    "rules",
    [
        [Quantize("int8")],
        [Quantize("int8", targets=["input"])],
        [Quantize("codebook4"), Quantize("int8", targets=["input"])],
    ],
)
def test_layers_without_both_are_computed_in_float32(rules, calls):
    model, small, x = layer(rules)
    np.testing.assert_array_equal(inference(small, x), inference(model, x))
    assert calls == []


@pytest.mark.parametrize("wrong", [samples(8, 7), samples(8, 30).astype(np.float64)])
def test_wrong_inputs_are_refused_as_before(wrong, calls):
    _, small, _ = layer()
    with pytest.raises(chainer.utils.type_check.InvalidType):
        inference(small, wrong)
    assert calls == []


def test_axes_of_samples(calls):
    _, small, x = layer()
    x = x.reshape(4, 2, 30)
    flat = inference(small, x.reshape(8, 5, 3, 2))
    assert flat.shape == (8, 20)
    (link,) = small
    with chainer.no_backprop_mode():
        found = link(chainer.Variable(x), n_batch_axes=2).array
    np.testing.assert_array_equal(found.reshape(8, 20), flat)
    assert found.shape == (4, 2, 20) and calls == [(8, 30), (8, 30)]


CONVOLUTIONS = {
    "padded": ((5, 6, 3), {"pad": 1}),
    "strides": ((5, 6, (3, 2)), {"stride": 2, "pad": (0, 1), "nobias": True}),
    "groups": ((6, 8, 3), {"groups": 2, "dilate": 2}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("order", ["C", "channels last"])
def test_outputs_of_convolutions_are_those_of_the_model(name, is_whole, order, calls):
    np.random.seed(0)
    (n_channels, *arguments), options = CONVOLUTIONS[name]
    x = kernels.in_order(samples(4, n_channels, 7, 8), order)
    link = L.Convolution2D(n_channels, *arguments, **options)
    model, small = trained(chainer.Sequential(link), BOTH, x)
    ones = [np.broadcast_to(v, 2) for v in (link.stride, link.pad, link.dilate)]
    geometry = Geometry(link.W.shape[2:], *map(tuple, ones), link.groups)
    choose(x.shape, link.W.shape, is_whole, geometry)
    expected = inference(model, x)
    assert calls == []
    found = inference(small, x)
    assert calls == [x.shape]
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest)
    path = "used" if is_whole else "not used"
    assert f"/0: int8 product: {path}," in int8_report(small)


@pytest.mark.parametrize("shape", [(4, 4, 7, 8), (4, 5, 2, 2), (4, 5, 7)])
def test_images_that_do_not_fit_are_refused_as_before(shape, calls):
    np.random.seed(0)
    model, small = trained(
        chainer.Sequential(L.Convolution2D(5, 6, 3)), BOTH, samples(4, 5, 7, 8)
    )
    for each in (model, small):
        with pytest.raises((chainer.utils.type_check.InvalidType, AssertionError)):
            inference(each, samples(*shape))
    assert calls == []


def test_asymmetric_weights_of_convolutions_are_computed_in_float32(calls):
    np.random.seed(0)
    rules = [Quantize("int8", targets=["weight", "input"], symmetric=False)]
    x = samples(4, 5, 7, 8)
    model, small = trained(chainer.Sequential(L.Convolution2D(5, 6, 3)), rules, x)
    np.testing.assert_array_equal(inference(small, x), inference(model, x))
    assert calls == []
    assert "must be symmetric" in int8_report(small)


def test_outputs_are_quantized_behind_it(calls):
    rules = [Quantize("int8", targets=["weight", "input", "output"])]
    model, small, x = layer(rules)
    found, expected = inference(small, x), inference(model, x)
    step = (expected.max() - expected.min()) / 200
    np.testing.assert_allclose(found, expected, atol=step)
    assert len(np.unique(found)) <= 256 and calls


def test_a_class_with_a_forward_of_its_own_keeps_it(calls):
    class Doubled(L.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    np.random.seed(0)
    x = samples(8, 30)
    model, small = trained(chainer.Sequential(Doubled(30, 20)), BOTH, x)
    np.testing.assert_array_equal(inference(small, x), inference(model, x))
    assert calls == []
    assert int8_report(small) == (
        "/0: float32, only Linear and Convolution2D compute in whole numbers"
    )


def test_hooks_see_the_function():
    _, small, x = layer()
    hook = chainer.function_hooks.TimerHook()
    with hook:
        inference(small, x)
    assert "WholeNumbers" in hook.summary()


def test_copies_and_files_have_the_weights_that_they_say(tmp_path):
    _, small, x = layer()
    before = inference(small, x)
    other = copy.deepcopy(small)
    other[0].W_whole[...] = -other[0].W_whole
    other[0].b.array[...] *= -1
    np.testing.assert_array_equal(inference(other, x), -before)
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    chainer.serializers.load_npz(tmp_path / "small.npz", other)
    np.testing.assert_array_equal(inference(other, x), before)


def test_a_report_says_what_was_measured():
    np.random.seed(0)
    x = samples(8, 3, 6, 6)
    model = Divisible(
        L.DilatedConvolution2D(3, 4, 3),
        F.relu,
        L.Linear(64, 20),
        F.relu,
        L.Linear(20, 5),
    )
    _, small = trained(model, BOTH, x)
    lines = int8_report(small).splitlines()
    assert lines[0] == (
        "/0: float32, only Linear and Convolution2D compute in whole numbers"
    )
    assert [line.split(":")[0] for line in lines[1:]] == ["/2", "/4"]
    assert all("not measured yet" in line for line in lines[1:])
    choose((8, 64), (20, 64), True)
    choose((8, 20), (5, 20), False)
    inference(small, x)
    used, unused = int8_report(small).splitlines()[1:]
    assert used == (
        "/2: int8 product: used, 0.50 of float32 (1 and 2 ms) for inputs (8, 64)"
    )
    # Another layer's inputs are not its.
    choose((9, 64), (20, 64), True)
    assert int8_report(small).splitlines()[1:] == [used, unused]
    inference(small, x[:0])
    _, _, none, *_ = int8_report(small).splitlines()
    assert none == "/2: float32, oneDNN has no fast exact product for inputs (0, 64)"
    assert unused == (
        "/4: int8 product: not used, 2.00 of float32 (2 and 1 ms) for inputs (8, 20)"
    )


@pytest.mark.parametrize(("n_channels", "stride"), [(3, 1), (3, 2), (8, 1)])
def test_a_convolution_of_many_outputs_of_few_inputs_is_as_it_was(
    calls, n_channels, stride
):
    link = L.Convolution2D(n_channels, 32, 3, stride, 1)
    x = samples(4, n_channels, 8, 8)
    _, small = trained(chainer.Sequential(link), BOTH, x)
    with chainer.using_config("train", False):
        before = small(x).array
    found = inference(small, x)
    if (n_channels, stride) != (3, 1):
        assert calls == [x.shape]
        return
    assert calls == []
    np.testing.assert_array_equal(found, before)
    assert int8_report(small) == (
        "/0: float32, many outputs of few inputs gain nothing by whole numbers: inputs"
        " (4, 3, 8, 8)"
    )


def test_a_report_says_why_there_is_none(anywhere):
    _, small, _ = layer()
    assert "/0: not measured yet" in int8_report(small)
    anywhere.setattr(whole_numbers, "instructions", lambda: None)
    assert "/0: float32, no product of 8-bit numbers here" in int8_report(small)
    small = apply(chainer.Sequential(L.Linear(3, 2)), CompressionPlan(BOTH))
    assert int8_report(small) == "/0: float32, its inputs have no range yet"
    assert int8_report(layer([Quantize("codebook4")])[1]) == (
        "/0: float32, its weights are not stored in whole numbers for float32"
    )
