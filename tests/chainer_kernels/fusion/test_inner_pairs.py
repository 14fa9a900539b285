"""Normalizations within layers that are marked."""

import copy
import gc
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_kernels
from chainer_kernels.fusion import inner_pairs
from chainer_kernels.fusion.folded_layers import run
from tests.support import kernels
from tests.support.folding import (
    Functions,
    assert_close,
    convolution,
    normalization,
    nothing_trains,
    unfolded,
)

X = kernels.arrays((4, 3, 9, 8), 0)
CONVOLVED, NORMALIZED = "Convolution2DFunction", "FixedBatchNormalization"


class Block(chainer.Chain):
    """A convolution and its normalization, which are no layers of the list."""

    def __init__(self, n_in=3, n_out=8):
        super().__init__()
        with self.init_scope():
            self.conv, self.norm = convolution(n_in, n_out), normalization(n_out)

    def forward(self, x):
        return self.norm(self.conv(x))


@chainer_kernels.fusible
class Residual(chainer.Chain):
    """Two blocks and a shortcut."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.second = Block(), Block(8, 3)
            self.gain = chainer.Parameter(2.0, (1,))

    def forward(self, x):
        h = self.second(F.relu(self.first(x)))
        return F.relu(h + x)


def runs(layer, *inputs):
    """Returns what a layer computes, and by which functions; or ``None``."""
    with nothing_trains(), Functions() as hook:
        found = run([layer], 0, inputs or (X,))
        # Layers see the same whether they are run or called.
        y = layer(*(inputs or (X,))) if found is None else found[1]
    assert_close(y.array, unfolded([layer], *(inputs or (X,))))
    return None if found is None else hook.labels


def test_pairs_within_are_folded_from_the_first_call_on():
    layer = Residual()
    expected = [CONVOLVED, "ReLU", CONVOLVED, "_ + _", "ReLU"]
    assert runs(layer) == expected
    assert runs(layer) == expected
    # Other shapes may take another way.
    assert runs(layer, X[:3, :, 1:]) == expected
    assert runs(copy.deepcopy(layer)) == expected


def test_the_links_stay_as_they_are():
    layer = Residual()
    before = [dict(vars(link)) for link in layer.links()]
    runs(layer)
    assert [vars(link) for link in layer.links()] == before


def test_what_is_folded_is_never_old():
    layer = Residual()
    runs(layer)
    layer.first.conv.W.array[...] *= 2
    layer.second.norm.avg_mean[...] += 1
    assert runs(layer) is not None


def test_links_may_be_replaced():
    layer = Residual()
    runs(layer)
    layer.first.norm = normalization(8, eps=0.5)
    assert runs(layer).count(NORMALIZED) == 0
    layer.first = chainer.Sequential(convolution(), F.tanh)
    assert runs(layer).count(CONVOLVED) == 2


def test_what_is_not_marked_is_called():
    assert runs(Block()) is None
    marked = Block()
    marked.forward = chainer_kernels.fusible(lambda x: marked.norm(marked.conv(x)))
    assert runs(marked) == [CONVOLVED]


def variant(forward):
    """Returns a marked layer with a ``forward`` of its own."""
    kind = type("Variant", (Block,), {"forward": forward})
    return chainer_kernels.fusible(kind)()


def used_twice(self, x):
    y = self.conv(x)
    return self.norm(y) + y


def seen_by_the_backdoor(self, x):
    return self.norm(self.conv(x).array)


def returned(self, x):
    self.conv(x)
    return self.conv(x)


def called_twice(self, x):
    return self.norm(self.norm(self.conv(x)))


def something_between(self, x):
    return self.norm(F.relu(self.conv(x)))


def not_inside(self, x):
    return OTHER(self.conv(x))


OTHER = normalization(8)


@pytest.mark.parametrize(
    "forward",
    [
        used_twice,
        seen_by_the_backdoor,
        returned,
        called_twice,
        something_between,
        not_inside,
    ],
)
def test_others_are_no_pairs(forward):
    layer = variant(forward)
    assert runs(layer) is None
    assert inner_pairs._found[layer] == {(X.shape,): ()}


def test_a_pair_that_is_returned_as_well_is_none():
    def forward(self, x):
        y = self.conv(x)
        return y, self.norm(y)

    layer = variant(forward)
    with nothing_trains():
        assert run([layer], 0, (X,)) is None


@pytest.mark.parametrize("way", ["without", "twice", "by another link"])
def test_a_broken_promise_is_found_out(way):
    def forward(self, x):
        y = self.conv(x)
        if self.is_straight:
            return self.norm(y)
        if way == "twice":
            return self.norm(self.conv(F.concat([x, x[:, :0]])))
        return y if way == "without" else OTHER(y)

    layer = variant(forward)
    layer.is_straight = True
    assert runs(layer) == [CONVOLVED]
    layer.is_straight = False
    assert runs(layer) is None
    layer.is_straight = True
    assert runs(layer) is None


def test_few_outputs_are_normalized_as_they_are():
    layer = variant(Block.forward)
    # 216 weights, and 8 outputs for each pixel.
    assert runs(layer, X[:1, :, :, :5]) == [CONVOLVED, NORMALIZED]
    assert runs(layer, X[:1, :, :, :6]) == [CONVOLVED]


def test_a_trial_draws_nothing_and_hooks_see_none():
    def forward(self, x):
        return self.norm(self.conv(F.gaussian(x, 0 * x)))

    layer, x = variant(forward), chainer.Variable(X)
    results = []
    with nothing_trains(), Functions() as hook:
        for _ in range(2):
            np.random.seed(0)
            results.append(run([layer], 0, (x,))[1].array)
    np.testing.assert_array_equal(*results)
    assert hook.labels.count(CONVOLVED) == 2


def test_errors_are_left_to_the_call():
    layer = Residual()
    with nothing_trains():
        assert run([layer], 0, (X, X)) is None
        assert run([layer], 0, (X[:, :1],)) is None
    assert runs(layer) is not None


def test_hooks_and_links_without_weights_are_respected():
    layer = Residual()
    with nothing_trains(), Functions(minds_fusion=True):
        assert run([layer], 0, (X,)) is None
    with nothing_trains():
        layer.first.conv = L.Convolution2D(None, 8, 3, pad=1)
        assert run([layer], 0, (X,)) is None
        assert layer.first.conv.W.array is None


def test_what_was_found_goes_with_the_layer():
    layer = Residual()
    runs(layer)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None


def test_a_layer_of_many_shapes_is_called_with_further_ones(monkeypatch):
    monkeypatch.setattr(inner_pairs, "_MOST_SHAPES", 1)
    layer = Residual()
    assert runs(layer) is not None
    assert runs(layer, X[:2]) is None
    assert runs(layer) is not None


def test_a_sequential_may_have_marked_layers():
    layer = chainer.Sequential(F.tanh, Residual())
    assert runs(layer).count(NORMALIZED) == 0
