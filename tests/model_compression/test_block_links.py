"""Links that skip the pruned blocks of their weights."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import WeightStandardization

import chainer_kernels
from chainer_kernels import block_choice, kept_weights
from divisible import Divisible
from divisible.backward.backprop import backward
from divisible.backward.weight_gradients import WeightGradients
from model_compression import Prune, block_report
from model_compression.block_links import (
    SkipsBlocks,
    choose,
    prepare,
    set_choice,
    set_live,
    why_not,
)
from tests.support import kernels

MAKE = {
    "Linear": (lambda: L.Linear(16, 24), (5, 16)),
    "Linear without a bias": (lambda: L.Linear(16, 24, nobias=True), (5, 16)),
    "1 x 1": (lambda: L.Convolution2D(16, 24, 1), (2, 16, 4, 4)),
    "3 x 3": (lambda: L.Convolution2D(16, 24, 3, 2, 1), (2, 16, 5, 6)),
}


def skipping(name):
    """A link with zeros that skips them, the same as an ordinary link, and inputs."""
    make, shape = MAKE[name]
    np.random.seed(1)
    plain = make()
    is_zero = np.zeros(plain.W.shape, bool)
    is_zero[:8, 8:] = is_zero[16:] = True
    plain.W.array[is_zero] = 0
    link = plain.copy("copy")
    assert prepare(link)
    set_live(link, is_zero)
    set_choice(link, True)
    return plain, link, kernels.arrays(shape, 2), is_zero


def functions_of(y):
    return [type(y.creator).__name__]


@pytest.mark.parametrize("bias", [None, 0])
def test_unchanged_weights_cost_no_checksum(bias, monkeypatch):
    """The tiles of a minibatch are gathered once, and their weights not read again."""
    sums = []
    monkeypatch.setattr(kept_weights, "_checksum", lambda a: sums.append(a) or 0)
    link = L.Linear(64, 64, nobias=bias is None)
    assert prepare(link)
    set_live(link, np.zeros(link.W.shape, bool))
    set_choice(link, True)
    gradients = WeightGradients(link.params)
    gradients.begin()
    with chainer_kernels.unchanged_weights():
        for _ in range(3):
            leaf = chainer.Variable(np.ones((4, 64), np.float32))
            y = link(leaf)
            backward([leaf], [y], [np.ones_like(y.array)], gradients)
    gradients.finish()
    assert len(sums) == 1


@pytest.mark.parametrize("name", MAKE)
def test_a_link_computes_as_before_without_what_is_zero(name):
    plain, link, x, is_zero = skipping(name)
    y, expected = link(x), plain(x)
    assert functions_of(y) == ["BlockProduct"]
    np.testing.assert_allclose(y.array, expected.array, 1e-4, 1e-5)
    for model in (plain, link):
        model.cleargrads()
        F.sum(model(x) ** 2).backward()
    found, dense = (dict(model.namedparams()) for model in (link, plain))
    np.testing.assert_allclose(
        found["/W"].grad, np.where(is_zero, 0, dense["/W"].grad), 1e-3, 1e-3
    )
    assert found.keys() == dense.keys()
    assert type(link).__name__ == type(plain).__name__


def test_samples_on_several_axes():
    plain, link, x, _ = skipping("Linear")
    x = x.reshape(5, 1, 4, 4)
    for options in ({"n_batch_axes": 2}, {}):
        y, expected = link(x, **options), plain(x, **options)
        assert y.shape == expected.shape and functions_of(link(x)) == ["BlockProduct"]
        np.testing.assert_allclose(y.array, expected.array, 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["Linear", "3 x 3"])
def test_it_computes_with_all_weights_where_blocks_cannot_be_skipped(name):
    plain, link, x, _ = skipping(name)
    with chainer_kernels.disabled():
        np.testing.assert_array_equal(link(x).array, plain(x).array)
    with chainer_kernels.products("bfloat16"):
        np.testing.assert_array_equal(link(x).array, plain(x).array)
    set_choice(link, False)
    np.testing.assert_array_equal(link(x).array, plain(x).array)
    set_choice(link, True)
    for model in (plain, link):
        for param in model.params():
            param.array = param.array.astype("d")
    np.testing.assert_array_equal(link(x.astype("d")).array, plain(x.astype("d")).array)
    with pytest.raises(chainer.utils.type_check.InvalidType):
        link(x.astype("d")[:, :8])


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_and_files(copied, tmp_path):
    _, link, x, _ = skipping("Linear")
    expected = link(x).array
    np.testing.assert_array_equal(copied(link)(x).array, expected)
    chainer.serializers.save_npz(tmp_path / "link.npz", link)
    other = L.Linear(16, 24)
    prepare(other)
    chainer.serializers.load_npz(tmp_path / "link.npz", other)
    y = other(x)
    assert functions_of(y) == ["BlockProduct"]
    np.testing.assert_array_equal(y.array, expected)


def test_reasons():
    class Own(L.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    for link, reason in (
        (L.Linear(12, 8), "no multiples of 8"),
        (L.Linear(None, 8), "no size yet"),
        (L.Convolution2D(16, 16, 3, groups=2), "in groups"),
        (L.EmbedID(8, 8), "only Linear and Convolution2D"),
        (Own(8, 8), "only Linear and Convolution2D"),
    ):
        assert reason in why_not(link)
        assert not prepare(link) and not isinstance(link, SkipsBlocks)
    assert why_not(L.Linear(8, 8)) == ""


def test_the_choice_is_measured_for_the_inputs_that_were_read(monkeypatch):
    _, link, x, _ = skipping("Linear")
    prepare(link)
    assert "pruning is not over" in block_report(link)
    assert choose(link) is None
    link(x)
    seen = []

    def measured(layer, W, shape):
        seen.append((layer.shape, W is link.W.array, shape))
        return block_choice.BlockChoice(shape, 3.0, 1.0)

    monkeypatch.setattr(block_choice, "measured", measured)
    assert choose(link) is True
    assert seen == [((24, 16), True, (5, 16))]
    set_choice(link, True)
    assert block_report(link) == (
        "/: skips 50.0% of its tiles (1 and 3 ms for inputs (5, 16))"
    )
    set_choice(link, False)
    assert "all weights, which is faster" in block_report(link)


def test_only_blocks_can_be_skipped():
    with pytest.raises(ValueError, match="only blocks .*'row'.*granularity="):
        Prune("l2", granularity="row", skip_blocks=True)


@pytest.mark.parametrize("name", ["Linear", "3 x 3"])
def test_inputs_without_samples(name):
    plain, link, x, _ = skipping(name)
    assert link(x[:0]).shape == plain(x[:0]).shape
    prepare(link)
    link(x[:0])
    assert choose(link) is None


def test_weights_that_a_hook_has_made_are_not_skipped():
    plain, link, x, _ = skipping("Linear")
    for model in (plain, link):
        model.add_hook(WeightStandardization())
    np.testing.assert_array_equal(link(x).array, plain(x).array)


def test_transposed_weights_are_not_skipped():
    np.random.seed(0)
    model = Divisible(L.Linear(16, 16), F.tanh, L.Linear(16, 16))
    model.tie("/0/W", "/2/W", transpose=True)
    is_zero = np.zeros((16, 16), bool)
    is_zero[:8, 8:] = True
    model[0].W.array[is_zero] = 0
    x = kernels.arrays((5, 16), 2)
    expected = model(x).array
    for layer in (model[0], model[2]):
        prepare(layer)
        set_live(layer, is_zero)
    model(x)
    assert choose(model[0]) is not None and choose(model[2]) is None
    set_choice(model[0], True)
    set_choice(model[2], True)
    np.testing.assert_allclose(model(x).array, expected, 1e-4, 1e-5)
