"""Ranks that hold microbatches on disk train as those that hold them in memory."""

import errno
import os
import re
import resource

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan, pop, stash
from mixed_precision import MixedPrecision, to_float16
from pipeline import ActionError, Pipeline
from tests.support.equivalence import train_in_microbatches
from tests.support.mpiexec import assert_on_ranks, on_ranks

X = np.random.RandomState(0).normal(size=(64, 256)).astype(np.float32)
T = np.random.RandomState(1).randint(0, 10, 64).astype(np.int32)
N_MICROBATCHES = 4
BATCHES = [(X, T), (X[:30], T[:30])]


def model():
    np.random.seed(0)
    layers = [f for _ in range(5) for f in (L.Linear(256, 256), F.tanh, F.dropout)]
    layers[2:2], layers[-2:-2] = [stash("a")], [pop("a", F.add)]
    return Divisible(*layers, L.Linear(256, 10))


def trained(comm, is_narrow=False, per_rank=1, **arguments):
    layers = to_float16(model()) if is_narrow else model()
    cuts = Plan.uniform(len(layers), comm.size * per_rank).cuts
    stages = [
        layers.divide(cuts[i], cuts[i + 1])
        for i in range(comm.rank, comm.size * per_rank, comm.size)
    ]
    optimizers = [chainer.optimizers.MomentumSGD(0.1) for _ in stages]
    if is_narrow:
        optimizers = [MixedPrecision(each, comm=comm) for each in optimizers]
        arguments["loss_scale"] = optimizers[0].loss_scale
    for optimizer, stage in zip(optimizers, stages):
        optimizer.setup(stage)
    losses = []
    with Pipeline(stages, comm, n_microbatches=N_MICROBATCHES, **arguments) as pipe:
        for x, t in BATCHES:
            losses.append(pipe.step(x, t)["loss"])
            for optimizer in optimizers:
                optimizer.update()
    params = {k: p.array for stage in stages for k, p in stage.namedparams()}
    return losses, params


def on_disk_as_in_memory(comm):
    cases = [
        {"schedule": "gpipe"},
        {"schedule": "1f1b"},
        {"schedule": "gpipe", "recompute": "always"},
        {"schedule": "zb_h1"},
        {"schedule": "interleaved", "per_rank": 2},
        {"schedule": "1f1b", "is_narrow": True},
    ]
    expected, serial = train_in_microbatches(model(), BATCHES, N_MICROBATCHES)
    for case in cases:
        losses, params = trained(comm, **case)
        found, others = trained(comm, hold_in="disk", **case)
        assert found == losses, case
        for path, array in params.items():
            np.testing.assert_array_equal(others[path], array, err_msg=f"{case}{path}")
        if "is_narrow" not in case:
            np.testing.assert_allclose(found, expected[:, 0], rtol=1e-5)
            for path, array in others.items():
                expected_array = serial[path].array
                np.testing.assert_allclose(array, expected_array, rtol=1e-3, atol=1e-6)


def test_on_disk_as_in_memory():
    assert_on_ranks(2, on_disk_as_in_memory)


def a_disk_fills(comm):
    """On rank 0, between two microbatches of the first step."""
    layers = model()
    stage = layers.divide(*Plan.uniform(len(layers), comm.size).range(comm.rank))
    with Pipeline(
        stage, comm, n_microbatches=N_MICROBATCHES, schedule="gpipe", hold_in="disk"
    ) as pipe:
        if comm.rank == 0:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
        pipe.step(X, T)


def test_a_disk_that_fills_ends_all_ranks():
    result = on_ranks(2, a_disk_fills, timeout=40)
    assert result.returncode != 0, result.stdout
    assert "rank done" not in result.stdout, result.stdout
    for words in ("0F1 failed on rank 0", "has no room for", "bytes of this process"):
        assert words in result.stdout, result.stdout


def a_disk_breaks(comm):
    """Under what the only stage holds, which has the loss as well."""

    def broken(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        pipe = Pipeline(
            model().divide(),
            comm,
            n_microbatches=N_MICROBATCHES,
            schedule="gpipe",
            hold_in="disk",
        )
        with pytest.raises(ActionError) as caught:
            pipe.step(X, T)
    words = r"stage 0 with the layers 0 to 17\): OSError: .* of the file in /.* \(EIO\)"
    assert re.search(words, str(caught.value)), caught.value


def test_a_disk_that_breaks_is_not_blamed_on_the_loss():
    assert_on_ranks(1, a_disk_breaks)
