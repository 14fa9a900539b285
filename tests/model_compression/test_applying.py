import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible
from model_compression import (
    Compress,
    CompressionPlan,
    Prune,
    Quantize,
    apply,
    load_applied,
)
from tests.support.examples import examples

BETWEEN = {
    "none": [],
    "relu": [lambda n: F.relu],
    "normalized": [lambda n: L.BatchNormalization(n), lambda n: F.relu],
    "without gamma": [
        lambda n: L.BatchNormalization(n, use_gamma=False),
        lambda n: F.relu,
    ],
    "without both": [
        lambda n: F.elu,
        lambda n: L.BatchNormalization(n, use_gamma=False, use_beta=False),
    ],
    "renormalized": [
        lambda n: L.BatchRenormalization(n, dmax=0.5, use_gamma=False),
        lambda n: F.leaky_relu,
        lambda n: L.BatchNormalization(n, axis=(0, 2, 3), use_beta=False),
    ],
    "pooled": [
        lambda n: F.tanh,
        lambda n: functools.partial(F.max_pooling_2d, ksize=2),
    ],
}


def convolutional(first, second, between, side=8, nobias=False):
    layers = [L.Convolution2D(2, first, 3, pad=1, nobias=nobias)]
    layers += [make(first) for make in BETWEEN[between]]
    layers += [L.Convolution2D(first, second, 1), F.relu]
    side = side // 2 if between == "pooled" else side
    return Divisible(*layers, L.Linear(second * side**2, 5))


def train(model, compress, optimizer, x, n=3):
    for iteration in range(1, n + 1):
        loss = F.mean(F.square(model(x)))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        compress.advance(iteration, epoch=iteration / 10)


@examples(30)
@given(
    st.integers(2, 6),
    st.integers(2, 5),
    st.sampled_from(sorted(BETWEEN)),
    st.floats(0.1, 0.95),
    st.booleans(),
)
def test_a_smaller_model_gives_the_outputs_of_the_masked_one(
    first, second, between, degree, nobias
):
    np.random.seed(0)
    model = convolutional(first, second, between, nobias=nobias)
    # Running averages of what is pruned have begun to move by then.
    x = np.random.default_rng(1).normal(1, size=(4, 2, 8, 8)).astype(np.float32)
    begin = 2, "iteration"
    plan = CompressionPlan(
        [
            Prune(
                "l2",
                layers="Convolution2D",
                to=degree,
                granularity="channel",
                begin=begin,
            )
        ]
    )
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    train(model, Compress(plan, optimizer), optimizer, x)
    small = apply(model, plan)
    left = [n - min(n - 1, int(degree * n + 0.5)) for n in (first, second)]
    convolutions = [each for each in small if isinstance(each, L.Convolution2D)]
    assert [each.W.shape[0] for each in convolutions] == left
    assert [each.out_channels for each in convolutions] == left
    assert small[-1].in_size == small[-1].W.shape[1]
    for is_training in (False, True):
        with chainer.using_config("train", is_training):
            np.testing.assert_allclose(
                small(x).array, model(x).array, rtol=1e-5, atol=1e-6
            )


def test_the_model_stays_and_the_smaller_one_trains_on():
    np.random.seed(0)
    model = convolutional(4, 4, "normalized")
    x = np.random.default_rng(1).normal(size=(4, 2, 8, 8)).astype(np.float32)
    plan = CompressionPlan(
        [
            Prune(
                "taylor",
                layers="/0",
                to=0.5,
                granularity="channel",
                begin=(2, "iteration"),
            )
        ]
    )
    optimizer = chainer.optimizers.Adam().setup(model)
    train(model, Compress(plan, optimizer), optimizer, x)
    small = apply(model, plan)
    assert model[0].W.shape == (4, 2, 3, 3) and model[0].W.update_rule is not None
    assert "in_channels=2, out_channels=2" in small.model_layers[0]
    optimizer = chainer.optimizers.Adam().setup(small)
    before = small[0].W.array.copy()
    loss = F.mean(F.square(small(x)))
    small.cleargrads()
    loss.backward()
    optimizer.update()
    assert (small[0].W.array != before).all()


def test_a_file_of_the_smaller_model_loads(tmp_path):
    np.random.seed(0)
    model = convolutional(6, 3, "pooled")
    x = np.random.default_rng(1).normal(size=(4, 2, 8, 8)).astype(np.float32)
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.5, granularity="channel")])
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    train(model, Compress(plan, optimizer), optimizer, x)
    small = apply(model, plan)
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    other = convolutional(3, 3, "pooled")
    chainer.serializers.load_npz(tmp_path / "small.npz", other)
    np.testing.assert_array_equal(other(x).array, small(x).array)
    # By the plan, where nobody knows how many channels there are.
    again = load_applied(tmp_path / "small.npz", convolutional(6, 3, "pooled"), plan)
    np.testing.assert_array_equal(again(x).array, small(x).array)


def test_a_file_loads_into_a_normalization_that_has_no_size_yet(tmp_path):
    def build():
        np.random.seed(0)
        norm = L.BatchNormalization(axis=(0, 2, 3))
        layers = L.Convolution2D(2, 6, 3), norm, F.relu, L.Convolution2D(6, 2, 1)
        return Divisible(*layers)

    model = build()
    x = np.random.default_rng(1).normal(size=(4, 2, 8, 8)).astype(np.float32)
    model(x)
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.5, granularity="channel")])
    Compress(plan, chainer.optimizers.SGD().setup(model)).advance(1, 0.0)
    small = apply(model, plan)
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    again = load_applied(tmp_path / "small.npz", build(), plan)
    assert again[1].avg_mean.shape == again[1].gamma.shape == (3,)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(again(x).array, small(x).array)
        np.testing.assert_allclose(small(x).array, model(x).array, rtol=1e-5, atol=1e-6)


def test_rows_of_zeros_stay_where_a_normalization_gives_other_numbers():
    np.random.seed(0)
    model = Divisible(
        L.Linear(4, 3), L.BatchNormalization(3, use_gamma=False), L.Linear(3, 2)
    )
    model[0].W.array[1] = 0
    model[1].avg_mean[1] = -2
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.4, granularity="channel")])
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    small = apply(model, plan)
    assert small[0].W.shape == (3, 4)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(small(x).array, model(x).array)
    model[1].avg_mean[1] = 0
    small = apply(model, plan)
    assert small[0].W.shape == (2, 4) and len(small[1].avg_mean) == 2
    with chainer.using_config("train", False):
        np.testing.assert_allclose(small(x).array, model(x).array, rtol=1e-6)


def deep():
    return Divisible(
        L.Linear(4, 8), F.relu, L.Linear(8, 8), L.BatchNormalization(8), L.Linear(8, 3)
    )


def test_channels_of_layers_that_follow_each_other_load(tmp_path):
    plan = CompressionPlan(
        [
            Prune("l1", layers=["/0", "/2"], to=0.5, granularity="channel"),
            Quantize("int8", layers=["/2", "/4"]),
        ]
    )
    model = deep()
    Compress(plan, chainer.optimizers.SGD().setup(model)).advance(1, 0.0)
    small = apply(model, plan)
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    built = deep()
    before = [param.array.copy() for param in built.params()]
    again = load_applied(tmp_path / "small.npz", built, plan)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(again(x).array, small(x).array)
    assert again[2].W_whole.shape == (4, 4) and again[2].W_whole.dtype == np.int8
    for param, array in zip(built.params(), before):
        np.testing.assert_array_equal(param.array, array)


def tied(transpose, is_inner):
    np.random.seed(0)
    line = Divisible(L.Linear(6, 6), F.relu, L.Linear(6, 6), F.relu, L.Linear(6, 3))
    line.tie("/0/W", "/2/W", transpose=transpose)
    return chainer.Sequential(line, F.tanh) if is_inner else line


def rounded(weight, bits=8):
    """Returns a weight as whole numbers times a scale for each row make it."""
    scale = abs(weight).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.round(weight / scale) * scale


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("is_inner", [False, True])
@pytest.mark.parametrize("method", ["l1", "channel", "int8", "codebook2"])
def test_tied_layers_stay_as_they_are_used(transpose, is_inner, method, tmp_path):
    model, at = tied(transpose, is_inner), "/0" if is_inner else ""
    both = [f"{at}/0", f"{at}/2"]
    rules = {
        "l1": Prune("l1", layers=both, to=0.5),
        "channel": Prune("l1", layers=f"{at}/4", to=0.3),
        "int8": Quantize("int8", layers=both),
        "codebook2": Quantize("codebook2", layers=both),
    }
    plan = CompressionPlan([rules[method]])
    Compress(plan, chainer.optimizers.SGD().setup(model)).advance(1, 0.0)
    line = model[0] if is_inner else model
    first, second, last = (line[i].W.array for i in (0, 2, 4))
    second = second.T if transpose else second
    if method == "int8":
        first, second = rounded(first), rounded(second)
    x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    expected = np.maximum(np.maximum(x @ first.T, 0) @ second.T, 0) @ last.T
    expected = np.tanh(expected) if is_inner else expected
    small = apply(model, plan)
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    again = load_applied(tmp_path / "small.npz", tied(transpose, is_inner), plan)
    for each in (model, small, again):
        np.testing.assert_allclose(each(x).array, expected, rtol=1e-4, atol=1e-5)
    if method in ("l1", "channel"):
        ties = small[0].ties if is_inner else small.ties
        assert [tie.path for tie in ties] == ["/0/W"]


def test_a_file_of_another_model_is_refused(tmp_path):
    plan = CompressionPlan([Quantize("int8", layers="/0")])
    path = tmp_path / "dense.npz"
    chainer.serializers.save_npz(path, deep())
    with pytest.raises(ValueError, match="dense.npz is not of this model under this"):
        load_applied(path, deep(), plan)
    with pytest.raises(ValueError, match="dense.npz is not of this model under this"):
        load_applied(path, Divisible(L.Linear(5, 8)), CompressionPlan([Prune("l1")]))
    with pytest.raises(OSError):
        load_applied(tmp_path / "none.npz", deep(), plan)


def of_two(n_out, *layers):
    return chainer.Sequential(L.Linear(4, n_out), *layers)


def calibrated(plan):
    """A model whose inputs have few bits."""
    model = of_two(3)
    optimizer = chainer.optimizers.SGD(0).setup(model)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    train(model, Compress(plan, optimizer), optimizer, x)
    return model


INT8, INT4 = (
    CompressionPlan([Quantize(method, targets=("weight", "input"))])
    for method in ("int8", "int4")
)
ONE_SIDED = CompressionPlan(
    [Quantize("int8", targets=("weight", "input"), symmetric=False)]
)


@pytest.mark.parametrize(
    "saved, model, plan, text",
    [
        # NumPy would copy the one row into all three.
        (of_two(1), of_two(3), INT8, r"is of \(1,.*\), not of \(3,"),
        (of_two(3, L.Linear(3, 2)), of_two(3), INT8, "the model has no 1/"),
        (of_two(3), of_two(3), INT4, "the (weight|input) of /0 has 8 bits in the file"),
        (of_two(3), of_two(3), ONE_SIDED, "0/W_whole is int8, not uint8"),
    ],
)
def test_a_file_that_numpy_would_read_is_refused(saved, model, plan, text, tmp_path):
    chainer.serializers.save_npz(tmp_path / "small.npz", apply(saved, INT8))
    with pytest.raises(ValueError, match=text):
        load_applied(tmp_path / "small.npz", model, plan)


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    small = apply(calibrated(INT8), INT8)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    for target in ("weight", "input"):
        flag = getattr(small[0], f"{target}_is_quantized")
        assert flag[0] == 8
        # Rules in force had this value.
        flag[0] = 1
    chainer.serializers.save_npz(tmp_path / "small.npz", small)
    again = load_applied(tmp_path / "small.npz", of_two(3), INT8)
    np.testing.assert_array_equal(again(x).array, small(x).array)


def test_without_a_rule_for_channels_zeros_stay():
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 2))
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.5, granularity="row")])
    optimizer = chainer.optimizers.SGD().setup(model)
    Compress(plan, optimizer).advance(1, 0.0)
    small = apply(model, plan)
    assert small[0].W.shape == (4, 4)
    np.testing.assert_array_equal(small[0].W.array, model[0].W.array)


def test_a_stage_is_refused():
    stage = Divisible(L.Linear(4, 4), L.Linear(4, 2)).divide(0, 1)
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.5)])
    with pytest.raises(ValueError, match="the model is a stage"):
        apply(stage, plan)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_no_whole_number_stands_for_are_refused(value):
    model = chainer.Sequential(L.Linear(4, 3), L.Linear(3, 2))
    model[1].b.array[1] = value
    rules = [Quantize("int8", targets="weight")]
    y = apply(model, CompressionPlan(rules))(np.ones((1, 4), np.float32)).array
    assert not np.isfinite(y[0, 1])
    rules.append(Quantize("int8", layers="/1", targets=["bias"]))
    with pytest.raises(ValueError, match="/1/b has values that are not finite"):
        apply(model, CompressionPlan(rules))


def test_channels_that_are_needed_are_refused_before_training():
    model = Divisible(L.Linear(4, 4), F.sigmoid, L.Linear(4, 2))
    optimizer = chainer.optimizers.SGD().setup(model)
    with pytest.raises(ValueError, match="go to layer 1, sigmoid"):
        Compress(
            CompressionPlan([Prune("l1", layers="/0", to=0.5, granularity="channel")]),
            optimizer,
        )


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_no_model_or_no_plan_is_refused(swapped):
    rules = [Quantize("int8")]
    given = (chainer.Sequential(L.Linear(4, 2)), rules)
    if swapped:
        given = CompressionPlan(rules), given[0]
    with pytest.raises(TypeError, match="takes a chainer.Link and a CompressionPlan"):
        apply(*given)
