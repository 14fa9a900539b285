"""Layers move in all replicas of a pipeline alike."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan
from pipeline import Pipeline, rebalance
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import state_of

BATCHES = make_batches([16] * 6)


def build():
    return Divisible(
        L.Linear(6, 8), F.tanh, L.BatchNormalization(8), L.Linear(8, 8), L.Linear(8, 4)
    )


def train(comm, moves, options):
    np.random.seed(2)
    with Grid(comm, n_pipeline=2) as grid:
        stage = build().divide(*Plan([0, 2, 5]).range(grid.pipeline.rank))
        pipe = Pipeline(stage, grid, 2, timeout=20)
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.MomentumSGD(0.1), grid.data, pipeline=pipe, **options
        ).setup(stage)
        losses = []
        for i, (x, t) in enumerate(BATCHES):
            half = slice(grid.replica * 8, grid.replica * 8 + 8)
            losses.append(pipe.step(x[half], t[half])["loss"])
            optimizer.update()
            if i in moves:
                moved = rebalance(pipe, optimizer, moves[i], build)
                assert moved.layers
        state = state_of(stage)
        # Where it is does not matter, and what it has of a replica does.
        state.update((f"lost{k}", v.copy()) for k, v in optimizer.residuals.items())
        together = {}
        for rank, theirs in enumerate(pipe.gather(state, "save")):
            replica, _ = grid.place(rank)
            together.update((f"{replica}: {key}", v) for key, v in theirs.items())
        pipe.close()
        optimizer.close()
        return losses, together


def moves_alike(comm, options):
    expected_losses, expected = train(comm, {}, options)
    losses, state = train(comm, {1: [0, 4, 5], 3: [0, 1, 5]}, options)
    assert state.keys() == expected.keys()
    # What is coded together depends on the cut, and so what coding loses.
    tolerance = {"rtol": 1e-2, "atol": 2e-3} if options else {"rtol": 0}
    np.testing.assert_allclose(losses, expected_losses, **tolerance)
    for key, value in expected.items():
        np.testing.assert_allclose(state[key], value, **tolerance, err_msg=key)


def residuals_move(comm):
    """Between two updates, what was lost of a layer goes where the layer goes."""
    options = {"wire_dtype": "fp16", "error_feedback": True, "minimum": 1}
    np.random.seed(2)
    with Grid(comm, n_pipeline=2) as grid:
        stage = build().divide(*Plan([0, 2, 5]).range(grid.pipeline.rank))
        pipe = Pipeline(stage, grid, 2, timeout=20)
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.MomentumSGD(0.1), grid.data, pipeline=pipe, **options
        ).setup(stage)
        x, t = BATCHES[0]
        half = slice(grid.replica * 8, grid.replica * 8 + 8)
        pipe.step(x[half], t[half])
        optimizer.update()

        # As if their coding had lost something: these are too small to be coded.
        rng = np.random.RandomState(comm.rank)
        for value in optimizer.residuals.values():
            value[...] = rng.standard_normal(value.shape)

        def lost():
            mine = {k: v.copy() for k, v in optimizer.residuals.items()}
            together = {}
            for rank, theirs in enumerate(pipe.gather(mine, "save")):
                replica, _ = grid.place(rank)
                together.update(((replica, k), v) for k, v in theirs.items())
            return mine, together

        mine, before = lost()
        rebalance(pipe, optimizer, [0, 4, 5], build)
        there, after = lost()
        assert mine.keys() != there.keys()
        assert before.keys() == after.keys()
        assert before
        for key, value in before.items():
            np.testing.assert_array_equal(after[key], value, err_msg=key)
        pipe.close()
        optimizer.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"wire_dtype": "fp16", "error_feedback": True, "minimum": 1}],
    ids=["plain", "error_feedback"],
)
def test_replicas_keep_one_cut(options):
    assert_on_ranks(4, moves_alike, options)


def test_what_error_feedback_keeps_moves():
    assert_on_ranks(4, residuals_move)
