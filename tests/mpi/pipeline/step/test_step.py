"""How many modules and calls a step adds to those of the layers that it computes."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks
from tests.support.walk import Walk, walk

X, T = np.ones((4, 4), np.float32), np.zeros(4, np.int32)
N_MICROBATCHES = 2
#: By the number of ranks, the cuts.
CUTS = {1: [0, 3], 2: [0, 2, 3]}
#: The most modules and calls that a step may add on a rank, without the loss and with
#: it. A feature that a run does not use adds none: these weights are too small to be
#: prepared for all microbatches.
LIMITS = {False: (27, 370), True: (31, 450)}


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_step_adds_few_modules_and_calls(n_ranks):
    assert_on_ranks(n_ranks, _check_step, n_ranks)


def _check_step(comm, n_ranks):
    cuts = CUTS[n_ranks]
    start, end = cuts[comm.rank], cuts[comm.rank + 1]
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 3))
    stage = model.divide(start, end)
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=N_MICROBATCHES)
    for _ in range(3):
        pipe.step(X, T)
        optimizer.update()
    ours = walk(pipe.step, X, T)
    layers = list(model)[start:end]
    _run_layers(layers, pipe.is_last)
    alone = walk(_run_layers, layers, pipe.is_last)
    added = Walk(
        [name for name in ours.modules if name not in alone.modules],
        ours.calls - alone.calls,
        ours.changes - alone.changes,
    )
    n_modules, n_calls = LIMITS[pipe.is_last]
    report = f"rank {comm.rank} of {n_ranks}: layers alone {alone}\na step adds {added}"
    assert len(added.modules) <= n_modules and added.calls <= n_calls, report
    pipe.close()


def _run_layers(layers, has_loss):
    """Runs forwards and backwards as a plain loop over the microbatches would."""
    for x, t in zip(np.split(X, N_MICROBATCHES), np.split(T, N_MICROBATCHES)):
        y = chainer.Variable(x)
        for layer in layers:
            y = layer(y)
        if has_loss:
            loss = F.softmax_cross_entropy(y, t)
            F.accuracy(y, t)
            loss.backward()
        else:
            y.grad = np.ones_like(y.array)
            y.backward()
