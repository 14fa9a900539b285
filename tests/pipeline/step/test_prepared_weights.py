"""Weights are prepared once a minibatch, whatever layers do to theirs."""

import contextlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

import chainer_kernels
from chainer_kernels import kept_weights, watched_parameters
from chainer_kernels.providers import onednn_products
from divisible import Divisible, deferred_init
from divisible.streaming import Streamed
from mixed_precision import MixedPrecision
from pipeline import Pipeline
from pipeline.step import layout

X = np.random.RandomState(0).randn(8, 3, 6, 6).astype("f")
T = np.arange(8, dtype="i") % 4


@pytest.fixture(autouse=True)
def small_weights(monkeypatch):
    """Prepares weights of small layers as well."""
    monkeypatch.setattr(onednn_products, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(watched_parameters, "SMALLEST", 1)


def no_scope(n_uses):
    return contextlib.nullcontext()


class Noisy(chainer.Chain):
    """A convolution to whose weights noise is added for each forward."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.link = L.Convolution2D(8, 8, 3, pad=1)

    def forward(self, x):
        W, saved = self.link.W.array, self.link.W.array.copy()
        W += np.random.randn(*W.shape).astype("f")
        y = self.link(x)
        W[...] = saved
        return y


def layers(middle):
    return [
        *(L.Convolution2D(3, 8, 3, pad=1), F.relu, middle, F.relu),
        *(L.Linear(8 * 36, 16), F.relu, L.Linear(16, 4)),
    ]


def train(middle, n=4, **options):
    """Returns losses and parameters of three steps, and what else is computed."""
    np.random.seed(0)
    with deferred_init(0):
        model = Divisible(*layers(middle())).divide(None, None)
    pipe = Pipeline(
        model,
        MPI.COMM_SELF,
        n_microbatches=n,
        lossfun=F.softmax_cross_entropy,
        **options,
    )
    optimizer = chainer.optimizers.SGD(0.05).setup(model)
    found = []
    for _ in range(3):
        found.append(pipe.step(X, T)["loss"])
        optimizer.update()
    found += [pipe.evaluate(X, T)["loss"], pipe.predict(X)]
    return [*found, *(p.array for p in model.params())]


MIDDLES = {
    "convolution": lambda: L.Convolution2D(8, 8, 3, pad=1),
    "few pixels": lambda: lambda x: F.resize_images(x, (6, 6)),
    "deconvolution": lambda: L.Deconvolution2D(8, 8, 3, pad=1),
    "batch normalization": lambda: L.BatchNormalization(8),
    "noise": Noisy,
}


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_training_is_what_it_is_without(middle, recompute, monkeypatch):
    found = train(MIDDLES[middle], recompute=recompute)
    monkeypatch.setattr(layout, "scope_for", lambda params: no_scope)
    expected = train(MIDDLES[middle], recompute=recompute)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_streamed_layers(monkeypatch):
    def middle():
        return Streamed(L.Convolution2D(8, 8, 3, pad=1), segment=3)

    found = train(middle)
    monkeypatch.setattr(layout, "scope_for", lambda params: no_scope)
    for a, b in zip(train(middle), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("n", "is_kept"), [(1, False), (4, True)])
def test_one_microbatch_needs_no_scope(n, is_kept):
    seen = []

    def middle():
        def look(x):
            seen.append(kept_weights.here.scope is not None)
            return x

        return look

    train(middle, n)
    assert set(seen) == {is_kept}


HELD = {"hold_dtype": "bfloat16", "schedule": "gpipe"}


@pytest.fixture
def float32_afterwards():
    """Ends products in bfloat16, which an optimizer begins for the whole process."""
    yield
    chainer_kernels.set_products("float32")


def bfloat16():
    return MixedPrecision(chainer.optimizers.Adam(), products="bfloat16")


WAYS = {
    "convolution": ("convolution", chainer.optimizers.Adam, {}),
    "batch normalization": ("batch normalization", chainer.optimizers.Adam, {}),
    "one buffer": ("convolution", bfloat16, {}),
    "held elsewhere": ("convolution", chainer.optimizers.Adam, HELD),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_needs_no_checksums(way, monkeypatch, float32_afterwards):
    sums = []
    checksum = kept_weights._checksum
    monkeypatch.setattr(
        kept_weights, "_checksum", lambda a: sums.append(id(a)) or checksum(a)
    )
    np.random.seed(0)
    middle, make_optimizer, options = WAYS[way]
    pipe = Pipeline(
        Divisible(*layers(MIDDLES[middle]())),
        MPI.COMM_SELF,
        n_microbatches=4,
        lossfun=F.softmax_cross_entropy,
        **options,
    )
    optimizer = pipe.setup(make_optimizer())
    for _ in range(2):
        sums.clear()
        pipe.step(X, T)
        optimizer.update()
    # Once for each array of which something is kept.
    assert sums and len(sums) == len(set(sums))
