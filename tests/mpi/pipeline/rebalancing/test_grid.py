"""Layers move in all replicas of a pipeline alike."""

import socket
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from divisible.schedules import Action
from pipeline import Pipeline, PipelineUpdater, Rebalance, rebalance
from pipeline.rebalancing.log import read_log
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import state_of
from tests.support.told_times import SECONDS, Clock, told_layers

BATCHES = make_batches([16] * 6)
# Nobody waits in vain here. On a busy machine, where others load or compile something,
# a wait may take many times as long as on an idle one.
PATIENCE = 120


def build():
    return Divisible(
        L.Linear(6, 8), F.tanh, L.BatchNormalization(8), L.Linear(8, 8), L.Linear(8, 4)
    )


def train(comm, moves, options):
    np.random.seed(2)
    with Grid(comm, n_pipeline=2) as grid:
        stage = build().divide(*Plan([0, 2, 5]).range(grid.pipeline.rank))
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=PATIENCE)
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
        for rank, theirs in enumerate(pipe.internals.gather(state, "save")):
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
    options = {"exchange_dtype": "fp16", "error_feedback": True, "minimum": 1}
    np.random.seed(2)
    with Grid(comm, n_pipeline=2) as grid:
        stage = build().divide(*Plan([0, 2, 5]).range(grid.pipeline.rank))
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=PATIENCE)
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
            for rank, theirs in enumerate(pipe.internals.gather(mine, "save")):
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
    [{}, {"exchange_dtype": "fp16", "error_feedback": True, "minimum": 1}],
    ids=["plain", "error_feedback"],
)
def test_replicas_keep_one_cut(options):
    assert_on_ranks(4, moves_alike, options)


def test_what_error_feedback_keeps_moves():
    assert_on_ranks(4, residuals_move)


class Counting(chainer.Chain):
    """A layer that remembers the samples of its last call."""

    n_samples = 0

    def __init__(self):
        super().__init__(linear=L.Linear(6, 4))

    def forward(self, x):
        Counting.n_samples = len(x)
        return self.linear(x)


def replicas_are_measured(comm, out, is_watched):
    with Grid(comm, n_pipeline=1) as grid:
        np.random.seed(2)
        stage = Divisible(Counting()).divide()
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=PATIENCE)
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe
        ).setup(stage)
        ((x, t),) = make_batches([48])
        data = chainer.datasets.TupleDataset(x, t)
        iterator = ReplicaIterator(
            chainer.iterators.SerialIterator(data, 16, shuffle=False),
            grid,
            shares="measured",
        )
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = chainer.training.Trainer(updater, (16, "iteration"), out=out)
        if not is_watched:
            with pytest.raises(RuntimeError, match="shares are to be measured"):
                updater.update()
            return
        # The second replica is three times as slow; a sample takes as long as another.
        slow_rank, slowness = (0, 3) if grid.replica == 1 else (None, 1)
        trainer.extend(Clock(slow_rank, 0, 17, lambda _: Counting.n_samples))
        trainer.extend(Rebalance(lambda: Divisible(Counting()), every=5))
        with told_layers(lambda position: SECONDS * slowness):
            trainer.run()
        assert sum(iterator.shares) == pytest.approx(1)
        assert 0.7 < iterator.shares[0] < 0.8
        assert (len(next(iterator)) > 8) == (grid.replica == 0)
        # The gradient is that of the whole minibatch, however it is divided.
        np.random.seed(2)
        model = Counting().linear
        sgd = chainer.optimizers.SGD(0.1).setup(model)
        for i in range(16):
            part = slice(16 * (i % 3), 16 * (i % 3) + 16)
            sgd.update(lambda p: F.softmax_cross_entropy(model(x[p]), t[p]), part)
        np.testing.assert_allclose(stage[0].linear.W.array, model.W.array, 1e-4, 1e-6)
        pipe.close()
        optimizer.close()


@pytest.mark.parametrize("is_watched", [True, False])
def test_replicas_get_parts_by_their_speed(tmp_path, is_watched):
    assert_on_ranks(2, replicas_are_measured, str(tmp_path), is_watched)


def the_slowest_of_a_place_is_named(comm, out):
    slow_from, slow = 8, 2
    with Grid(comm, n_pipeline=2, placement="replicas_together") as grid:
        stage = build().divide(*Plan([0, 2, 5]).range(grid.pipeline.rank))
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=PATIENCE)
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe
        ).setup(stage)
        iterator = None
        if pipe.is_first:
            ((x, t),) = make_batches([48])
            data = chainer.datasets.TupleDataset(x, t)
            iterator = chainer.iterators.SerialIterator(data, 8)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = chainer.training.Trainer(updater, (20, "iteration"), out=out)

        @chainer.training.make_extension(trigger=(1, "iteration"), priority=2000)
        def clock(trainer):
            is_slow = comm.rank == slow and updater.iteration > slow_from
            times, now = [], 0.0
            for operation in pipe.internals.record.program.operations:
                took = 1.0 + 2.0 * is_slow if isinstance(operation, Action) else 0.0
                times += [now, now + took]
                now += took
            pipe.internals.step.record = pipe.internals.record._replace(times=times)

        trainer.extend(clock, name="clock")
        trainer.extend(Rebalance(build, every=5))
        # The clock is the same on all ranks, and so is what a layer takes.
        with (
            mock.patch.object(socket, "gethostname", lambda: f"host{comm.rank}"),
            mock.patch("pipeline.rebalancing.common_layer.seconds_of", lambda *_: 0.01),
        ):
            trainer.run()
        pipe.close()
        optimizer.close()
    if comm.rank == 0:
        checks = read_log(f"{out}/rebalancing.jsonl")
        moved = [check for check in checks if check.moved]
        # Places have the ranks 0 and 1, and 2 and 3.
        assert moved[0].hosts[1] == "host2"
        assert moved[0].hosts[0] in ("host0", "host1")
        assert moved[0].speeds[1] < 0.6 * moved[0].speeds[0]


def test_the_host_that_became_slow_is_named_whichever_replica_it_is_of(tmp_path):
    output = assert_on_ranks(4, the_slowest_of_a_place_is_named, str(tmp_path))
    assert "rank 1 on host2 has" in output
