"""Replicas of a pipeline train as the undivided model does, and fail together."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan
from divisible.planning.shares import integer_shares
from pipeline import Pipeline
from tests.support.equivalence import (
    assert_close,
    make_batches,
    train_serially,
)
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 20
N_STEPS = 20


def exchanged(optimizer, grid):
    return create_multi_node_optimizer(optimizer, grid.data, timeout=TIMEOUT)


def mlp():
    return Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 8), F.tanh, L.Linear(8, 4))


def part(grid, batch, shares=None):
    """This replica's part of a minibatch."""
    x, t = batch
    sizes = integer_shares(shares or [1] * grid.n_replicas, len(x), 0)
    start = sum(sizes[: grid.replica])
    end = start + sizes[grid.replica]
    return (x[start:end], t[start:end]) if end > start else ((), ())


def stage_on(grid, make_model=mlp):
    np.random.seed(3)
    model = make_model()
    plan = Plan.uniform(len(model), grid.n_pipeline)
    return model.divide(*plan.range(grid.pipeline.rank))


def train_on(grid, make_model, batches, shares=None, set_up=None, **options):
    """Trains on a grid; returns the stage, and losses and accuracies."""
    stage = stage_on(grid, make_model)
    optimizer = exchanged(chainer.optimizers.MomentumSGD(0.1), grid).setup(stage)
    means = []
    with Pipeline(stage, grid, **{"timeout": TIMEOUT, **options}) as pipe:
        for batch in batches:
            result = pipe.step(*part(grid, batch, shares))
            optimizer.n_samples = pipe.n_samples
            optimizer.update()
            means.append((result["loss"], result["accuracy"]))
    return stage, np.array(means)


def check(stage, means, expected_means, expected):
    assert_close(means, expected_means)
    for path, param in stage.namedparams():
        assert_close(param.array, expected[path].array, 1e-5, 1e-6, path)


def equals_serial(comm, n_pipeline, placement, sizes, shares, options):
    batches = make_batches((sizes * N_STEPS)[:N_STEPS])
    with Grid(comm, n_pipeline, placement) as grid:
        trained = train_on(grid, mlp, batches, shares, **options)
        np.random.seed(3)
        check(*trained, *train_serially(mlp(), batches))


@pytest.mark.parametrize(
    "n_pipeline, placement, sizes, shares, options",
    [
        (2, "stages_together", [12], None, {"n_microbatches": 2}),
        (2, "replicas_together", [10, 10, 3, 1], [1, 3], {"n_microbatches": 3}),
        (1, "stages_together", [9, 2], None, {"n_microbatches": 2}),
        (4, "replicas_together", [12, 5], None, {"n_microbatches": 4}),
    ],
)
def test_equals_serial_training(n_pipeline, placement, sizes, shares, options):
    arguments = n_pipeline, placement, sizes, shares, options
    assert_on_ranks(4, equals_serial, *arguments)
