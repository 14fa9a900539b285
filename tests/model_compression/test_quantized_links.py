import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from model_compression import Compress, CompressionPlan, Quantize, apply
from model_compression.quantized_links import FewBits, add_rule, set_active, weight_of

LINKS = {
    "Linear": (lambda: L.Linear(4, 3), (5, 4)),
    "Convolution2D": (lambda: L.Convolution2D(4, 3, 2), (5, 4, 3, 3)),
    "ConvolutionND": (lambda: L.ConvolutionND(1, 4, 3, 2), (5, 4, 3)),
    "DilatedConvolution2D": (lambda: L.DilatedConvolution2D(4, 3, 2), (5, 4, 3, 3)),
    "Deconvolution2D": (lambda: L.Deconvolution2D(4, 3, 2), (5, 4, 3, 3)),
    "DeconvolutionND": (lambda: L.DeconvolutionND(1, 4, 3, 2), (5, 4, 3)),
    "EmbedID": (lambda: L.EmbedID(6, 3), (5, 2)),
}


def make(name):
    np.random.seed(0)
    build, shape = LINKS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    return build(), (x > 0).astype(np.int32) if name == "EmbedID" else x


@pytest.mark.parametrize("name", LINKS)
def test_a_link_computes_with_rounded_weights_and_learns_the_real_ones(name):
    link, x = make(name)
    rounded = copy.deepcopy(link)
    rule = Quantize("int3", per_channel=False)
    scale = abs(link.W.array).max() / np.float32(3)
    rounded.W.array[...] = np.floor(link.W.array / scale + np.float32(0.5)) * scale
    before = link(x).array
    text, path = str(link), [path for path, _ in link.namedparams()]
    add_rule(link, rule)
    np.testing.assert_array_equal(link(x).array, before)
    set_active(link, rule, True)
    assert type(link).__name__ == name and str(link) == text
    assert [path for path, _ in link.namedparams()] == path
    for each in (link, copy.deepcopy(link)):
        results = []
        for one in (each, rounded):
            y = one(x)
            one.cleargrads()
            F.sum(y * y).backward()
            results.append((y.array, one.W.grad))
        for found, expected in zip(*results):
            np.testing.assert_array_equal(found, expected)
        assert isinstance(each.W, chainer.Parameter)


def test_a_failing_call_leaves_the_parameters_where_they_are():
    link, _ = make("Linear")
    rule = Quantize("int8")
    add_rule(link, rule)
    set_active(link, rule, True)
    with pytest.raises(chainer.utils.type_check.InvalidType):
        link(np.ones((2, 9), np.float32))
    assert isinstance(link.W, chainer.Parameter)


def run(rule, minibatches):
    """Returns a layer whose activations were quantized while it saw minibatches."""
    model = Divisible(L.Linear(3, 3))
    model[0].W.array[...] = np.eye(3)
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    compress = Compress(CompressionPlan([rule]), optimizer)
    compress.advance(1, 0.0)
    for number, parts in enumerate(minibatches, 2):
        for part in parts:
            model(np.array(part, np.float32).reshape(-1, 3))
        compress.advance(number, 0.0)
    return model[0]


def test_ranges_are_moving_averages_over_minibatches():
    rule = Quantize("int8", targets=["input", "output"])
    # The microbatches of a minibatch make one range.
    link = run(rule, [[[-1, 0, 2], [0, 3, 1]], [[-3, 0, 5]]])
    np.testing.assert_allclose(link.input_range, [-1.2, 3.2], rtol=1e-6)
    assert link.input_n_seen[0] == link.output_n_seen[0] == 2


def test_ranges_may_leave_outliers_out_and_stay():
    rule = Quantize("int8", targets="input", percentile=90, freeze_after=1)
    shown = [*range(99), 10000]
    for parts in ([shown[:99]], [shown[:9], shown[9:51], shown[51:99]]):
        link = run(rule, [parts, [[5000] * 3]])
        np.testing.assert_allclose(link.input_range, [9.8, 88.2], rtol=2e-3)


def test_the_first_minibatch_is_as_it_is_and_evaluation_looks_at_nothing():
    rule = Quantize("int2", targets="input")
    link = run(rule, [])
    x = np.array([[0.3, 0.5, 0.9]], np.float32)
    np.testing.assert_array_equal(link(x).array, x)
    link = run(rule, [[[0, 0, 3]]])
    with chainer.using_config("train", False):
        y = link(np.array([[0.3, 0.6, 9]], np.float32)).array
    assert y.tolist() == [[0, 1, 3]]
    assert link.ranges.seen == {}


def test_integers_of_embeddings_are_no_activations():
    link, x = make("EmbedID")
    rule = Quantize("int4", targets=["weight", "input"])
    add_rule(link, rule)
    set_active(link, rule, True)
    link(x)
    assert link.ranges.seen == {}


def test_layers_that_cannot_be_quantized_are_refused():
    model = Divisible(L.Linear(3, 3), L.Bilinear(3, 3, 2))
    optimizer = chainer.optimizers.SGD().setup(model)
    with pytest.raises(ValueError, match="/1 is Bilinear, and only Linear, Conv"):
        Compress(CompressionPlan([Quantize("int8")]), optimizer)
    assert not isinstance(model[0], FewBits)
    for n in ("NStepLSTM", "NStepGRU"):
        optimizer.setup(chainer.Sequential(getattr(L, n)(1, 3, 2, 0.0)))
        with pytest.raises(ValueError, match="/0/0 is Link, and only Linear, Conv"):
            Compress(CompressionPlan([Quantize("int8")]), optimizer)


def test_each_output_of_a_deconvolution_has_a_scale():
    link = L.Deconvolution2D(2, 3, 3)
    link.W.array *= np.array([1, 1e-3, 10], np.float32)[:, None, None]
    rule = Quantize("int4")
    affine = weight_of(link, link.W.array, rule)
    assert affine.scale.shape == (1, 3, 1, 1)
    largest = abs(link.W.array).max(axis=(0, 2, 3))
    np.testing.assert_allclose(affine.scale.ravel(), largest / 7, rtol=1e-6)
    model = chainer.Sequential(link)
    plan = CompressionPlan([rule])
    Compress(plan, chainer.optimizers.SGD().setup(model)).advance(1, 0.0)
    x = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(apply(model, plan)(x).array, model(x).array)


def test_a_forward_that_runs_again_counts_once():
    rule = Quantize("int8", targets=["input", "output"], percentile=90)
    model = Divisible(L.Linear(3, 3, nobias=True))
    model[0].W.array[...] = 2 * np.eye(3)
    optimizer = chainer.optimizers.SGD(0.0).setup(model)
    compress = Compress(CompressionPlan([rule]), optimizer)
    compress.advance(1, 0.0)
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)).astype(np.float32) * n for n in (10, 20, 40)]
    for number, part in enumerate(parts[:2]):
        x = chainer.Variable(part)
        y = F.forget(model[0], x) if number else model(x)
        F.sum(y * y).backward()
    # A layer that is frozen need make no graph.
    with chainer.no_backprop_mode():
        model(parts[2])
    compress.advance(2, 0.0)
    shown = np.concatenate([part.ravel() for part in parts])
    expected = np.percentile(shown, [10, 90])
    np.testing.assert_allclose(model[0].input_range, expected, rtol=5e-3)
    np.testing.assert_allclose(model[0].output_range, 2 * expected, rtol=5e-3)


def test_all_weights_from_minus_a_to_a_have_a_gradient():
    model = chainer.Sequential(L.Linear(2, 2, nobias=True))
    model[0].W.array[...] = [[-3, 3], [0.5, 3]]
    rule = Quantize("int8", symmetric=False, per_channel=False)
    compress = Compress(CompressionPlan([rule]), chainer.optimizers.SGD().setup(model))
    compress.advance(1, 0.0)
    model.cleargrads()
    F.sum(model(np.ones((1, 2), np.float32))).backward()
    assert (model[0].W.grad == 1).all()
