"""Pipelines that fold batch normalizations when they predict."""

from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_kernels.fusion import folding
from divisible import Divisible
from pipeline import Pipeline, load_snapshot, predict, rebalance, save_snapshot
from tests.support.equivalence import assert_close
from tests.support.fusion import assert_same_bits
from tests.support.mpiexec import assert_on_ranks

random = np.random.RandomState(0)
X = random.standard_normal((8, 3, 6, 6)).astype(np.float32)
T = np.arange(8, dtype=np.int32) % 3
N_LAYERS = 9
# Between a layer and its normalization; then around both.
CUTS = (1, 2, 5, 6)


def build():
    model = Divisible()
    model.append(L.Convolution2D(3, 8, 3, pad=1))
    model.append(L.BatchNormalization(8), recompute=True)
    model.append(F.relu, recompute=True)
    model.append(F.dropout)
    nested = chainer.Sequential(L.Convolution2D(8, 8, 1), L.BatchNormalization(8))
    model.append(nested)
    model.append(L.Convolution2D(8, 4, 3, pad=1, nobias=True))
    model.append(L.BatchNormalization(4))
    model.append(F.tanh)
    model.append(L.Linear(4 * 6 * 6, 3))
    return model


def trained():
    """Returns a model with averages as training leaves them."""
    np.random.seed(0)
    model = build()
    for link in model.links():
        if isinstance(link, L.BatchNormalization):
            shape = link.avg_mean.shape
            link.avg_mean[...] = np.random.randn(*shape)
            link.avg_var[...] = np.random.uniform(0.5, 2, shape)
    return model


class Counted:
    """How many times something was folded in a block."""

    def __enter__(self):
        self._patch = mock.patch.object(folding, "fold", wraps=folding.fold)
        self._fold = self._patch.__enter__()
        return self

    def __exit__(self, *error):
        self._patch.__exit__(*error)

    def take(self):
        n, self._fold.call_count = self._fold.call_count, 0
        return n


def folds_on_any_cut(comm):
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        serial = trained()(X).array
    bounds = [[0, N_LAYERS]] if comm.size == 1 else [[0, c, N_LAYERS] for c in CUTS]
    for cuts in bounds:
        results = []
        for fuse in ("none", "auto"):
            stage = trained().divide(*cuts[comm.rank : comm.rank + 2])
            with (
                Counted() as counted,
                Pipeline(stage, comm, n_microbatches=2, fuse=fuse) as pipe,
            ):
                y = pipe.predict(X)
                n = sum(pipe.internals.gather(counted.take(), "save"))
                # Both microbatches have the same weights.
                n_parted = sum(cut in (1, 6) for cut in cuts)
                assert n == (0 if fuse == "none" else 3 - n_parted)
                loss = pipe.evaluate(X, T)["loss"]
                iterator = chainer.iterators.SerialIterator(list(X), 4, False, False)
                results.append((y, loss, predict(pipe, iterator)))
        for one, other in zip(*results):
            assert_close(np.asarray(one), np.asarray(other), 1e-4, 1e-5)
        assert_close(results[1][0], serial, 1e-4, 1e-5)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_predictions_on_any_cut_are_those_one_by_one(n_ranks):
    assert_on_ranks(n_ranks, folds_on_any_cut)


# By the number of ranks.
BEGUN = {1: [0, N_LAYERS], 2: [0, 4, N_LAYERS]}
MOVED = {1: [0, N_LAYERS], 2: [0, 2, N_LAYERS]}


class Run:
    """A model that trains, and predicts with and without what is folded."""

    def __init__(self, comm, fuse):
        cuts = BEGUN[comm.size]
        self.stage = trained().divide(*cuts[comm.rank : comm.rank + 2])
        self.optimizer = chainer.optimizers.MomentumSGD(0.05).setup(self.stage)
        self.pipe = Pipeline(self.stage, comm, n_microbatches=2, fuse=fuse, timeout=30)

    def step(self):
        self.pipe.step(X, T)
        self.optimizer.update()


def is_never_old(comm, folder):
    plain, folded = Run(comm, "none"), Run(comm, "auto")
    seen = []

    def compare():
        y = folded.pipe.predict(X)
        assert_close(y, plain.pipe.predict(X), 1e-3, 1e-4)
        # What was seen before is something else.
        assert all(np.abs(y - other).max() > 1e-2 for other in seen)
        return y

    with Counted() as counted:
        seen.append(compare())
        for run, name in ((plain, "plain"), (folded, "folded")):
            save_snapshot(f"{folder}/{name}", run.pipe, run.optimizer)
        for _ in range(2):
            plain.step()
            folded.step()
            # Weights and averages have moved.
            seen.append(compare())
        assert counted.take() > 0
        rebalance(folded.pipe, folded.optimizer, MOVED[comm.size], trained)
        y = folded.pipe.predict(X)
        assert_close(y, seen[-1], 1e-4, 1e-5)
        assert sum(folded.pipe.internals.gather(counted.take(), "save")) == 3
        rebalance(folded.pipe, folded.optimizer, BEGUN[comm.size], trained)
        for run, name in ((plain, "plain"), (folded, "folded")):
            load_snapshot(f"{folder}/{name}", run.pipe, run.optimizer)
        first = seen[0]
        seen.clear()
        assert_same_bits([compare()], [first])
    for run in (plain, folded):
        run.pipe.close()


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_what_is_folded_is_never_old(n_ranks, tmp_path):
    assert_on_ranks(n_ranks, is_never_old, str(tmp_path))
