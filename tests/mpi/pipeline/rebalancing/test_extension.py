"""Layers leave a rank that becomes slow, and come back, while a trainer trains."""

import json

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer

from divisible import Divisible, LayerCost, Plan, Profile
from pipeline import (
    Pipeline,
    PipelineUpdater,
    Rebalance,
    latest_snapshot,
    load_snapshot,
    snapshot,
)
from pipeline.rebalancing.log import read_log, slow_ranks, stragglers
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import state_of
from tests.support.told_times import SECONDS, Clock, told_layers

N_LAYERS, EVERY = 12, 5
SLOW_FROM, SLOW_TO, END = 16, 31, 45


class Layer(chainer.Chain):
    def __init__(self):
        super().__init__(linear=L.Linear(6, 6))

    def forward(self, x):
        return F.dropout(F.tanh(self.linear(x)), 0.1)


def build():
    return Divisible(*[Layer() for _ in range(N_LAYERS)])


def train(comm, out, *extensions, end=END):
    np.random.seed(1)
    model = build()
    stage = model.divide(*Plan.uniform(N_LAYERS, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.Adam().setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=4, timeout=30)
    ((x, t),) = make_batches([40], n_classes=6)
    iterator = None
    if pipe.is_first:
        data = chainer.datasets.TupleDataset(x, t)
        iterator = chainer.iterators.SerialIterator(data, 8)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    trainer = Trainer(updater, (end, "iteration"), out=out)
    losses = []
    trainer.extend(
        lambda trainer: losses.append(trainer.observation["main/loss"]),
        name="losses",
        trigger=(1, "iteration"),
    )
    for each in extensions:
        trainer.extend(each)
    trainer.run()
    return losses, pipe, optimizer


def together(pipe):
    (stage,) = pipe.stages.values()
    found = {}
    for theirs in pipe.internals.gather(state_of(stage), "save"):
        found.update(theirs)
    return found


def layers_leave_and_come_back(comm, out):
    cost = LayerCost(SECONDS, SECONDS / 2, SECONDS / 2)
    profile = Profile([cost] * N_LAYERS, n_samples=2)
    watch = Rebalance(build, every=EVERY, profile=profile)
    keep = snapshot(filename="iter_{.updater.iteration}")
    keep.trigger = END, "iteration"
    losses, pipe, _ = train(comm, out, Clock(1, SLOW_FROM, SLOW_TO), watch, keep)
    with pipe:
        assert len(watch.moves) == 2
        state = together(pipe)
    if comm.rank == 0:
        with open(f"{out}/rebalancing.jsonl") as file:
            lines = [json.loads(line) for line in file]
        assert [line["iteration"] for line in lines] == [*range(5, END + 1, EVERY)]
        away, back = (line for line in lines if line["moved"])
        assert SLOW_FROM < away["iteration"] <= SLOW_FROM + 2 * EVERY
        assert np.diff(away["new_cuts"])[1] <= 2
        assert away["speeds"] == pytest.approx([1, 1 / 3, 1])
        assert away["predicted_step_seconds"] < 0.7 * away["step_seconds"]
        assert back["iteration"] > SLOW_TO
        assert back["new_cuts"] == pipe.cuts
        # As fast as equal stages, which fill and empty the pipeline no sooner.
        assert np.diff(pipe.cuts)[1] >= 3
        assert lines[-1]["step_seconds"] == pytest.approx(lines[0]["step_seconds"])
    unmoved_losses, other, _ = train(comm, out)
    with other:
        assert losses == unmoved_losses
        for key, value in together(other).items():
            np.testing.assert_array_equal(state[key], value, err_msg=key)


def test_layers_leave_a_slow_host_and_come_back(tmp_path):
    output = assert_on_ranks(3, layers_leave_and_come_back, str(tmp_path))
    assert "rank 1 on" in output
    assert "layers moved, from the cuts [0, 4, 8, 12] to" in output
    assert "a step was predicted to take" in output
    # And a snapshot of the run goes on with another number of stages.
    assert_on_ranks(2, goes_on, str(tmp_path))


def goes_on(comm, out):
    stage = build().divide(*Plan.uniform(N_LAYERS, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.Adam().setup(stage)
    ((x, t),) = make_batches([8], n_classes=6)
    with Pipeline(stage, comm, n_microbatches=4, timeout=30) as pipe:
        load_snapshot(latest_snapshot(out), pipe, optimizer, strict=False)
        assert pipe.n_steps == END
        assert optimizer.t == END
        assert np.isfinite(pipe.step(x, t)["loss"])


def slow_in_what_no_layer_shows(comm, out):
    """The clock is slow, and a layer that is computed by itself is not."""
    watch = Rebalance(build, every=EVERY)
    with told_layers(lambda position: SECONDS):
        _, pipe, _ = train(comm, out, Clock(1, 0, END), watch, end=25)
    pipe.close()
    assert watch.moves


def test_a_move_shows_that_it_was_no_layer_and_nobody_else_is_named(tmp_path):
    output = assert_on_ranks(3, slow_in_what_no_layer_shows, str(tmp_path))
    assert "whether hosts are slow or layers cost unequally is not known" in output
    checks = read_log(tmp_path / "rebalancing.jsonl")
    assert checks[-1].speeds is None
    named = [each.rank for each in (*stragglers(checks), *slow_ranks(checks))]
    assert set(named) <= {1}
    for rank in (0, 2):
        assert f"rank {rank} on" not in output
        assert not any(f"rank {rank} has" in check.reason for check in checks)


def alike(comm, out, log):
    watch = Rebalance(build, every=4, log=log)
    with told_layers(lambda position: SECONDS):
        _, pipe, _ = train(comm, out, Clock(0, 0, 0), watch, end=20)
    pipe.close()
    assert watch.moves == []


def test_nothing_moves_between_equal_hosts(tmp_path):
    assert_on_ranks(2, alike, str(tmp_path), False)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_told_in_the_seconds_of_a_whole_minibatch(tmp_path):
    assert_on_ranks(2, alike, str(tmp_path), True)
    lines = (tmp_path / "rebalancing.jsonl").read_text().splitlines()
    # 4 microbatches and a step to fill, each a forward and a backward of 6 layers.
    for line in lines:
        assert json.loads(line)["step_seconds"] == pytest.approx(5 * 2 * 6 * SECONDS)
    assert len(lines) == 5


class Bottleneck(chainer.Link):
    def __init__(self, width):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(chainer.initializers.Normal(), (width, 6))

    def forward(self, x):
        return F.matmul(F.tanh(F.matmul(x, self.W, transb=True)), self.W)

    def narrow(self, width):
        self.W.cleargrad()
        self.W.array = self.W.array[:width]


def layers_shrink_at_each_check(comm, out):
    n_shrinking, widths = 4, [12] * 8

    def build():
        return Divisible(*map(Bottleneck, widths))

    @chainer.training.make_extension(trigger=(EVERY, "iteration"), priority=1100)
    def shrink(trainer):
        widths[:n_shrinking] = [widths[0] - 3] * n_shrinking
        for i, layer in enumerate(stage, stage.layer_range[0]):
            layer.narrow(widths[i])

    def cost(stage):
        return sum(widths[i] / 12 for i in range(*stage.layer_range))

    np.random.seed(1)
    stage = build().divide(*Plan.uniform(8, 2).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.01).setup(stage)
    a_layer = LayerCost(SECONDS, SECONDS / 2, SECONDS / 2)
    watch = Rebalance(build, every=EVERY, profile=Profile([a_layer] * 8, n_samples=2))
    with Pipeline(stage, comm, n_microbatches=4, timeout=30) as pipe:
        iterator = None
        if pipe.is_first:
            ((x, t),) = make_batches([40], n_classes=6)
            data = chainer.datasets.TupleDataset(x, t)
            iterator = chainer.iterators.SerialIterator(data, 8)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = Trainer(updater, (3 * EVERY + 2, "iteration"), out=out)
        for each in (shrink, Clock(0, 0, 0, cost), watch):
            trainer.extend(each)
        trainer.run()
    # At first both stages cost as much; what shrinks is in the first one.
    assert watch.moves[0].layers == (4,)
    if comm.rank == 0:
        checks = read_log(f"{out}/rebalancing.jsonl")
        # Two minibatches after each of those where layers have shrunk.
        assert [check.iteration for check in checks] == [7, 12, 17]
        assert checks[0].moved and checks[0].speeds == pytest.approx([1, 1])


def test_layers_that_shrink_at_each_check_are_balanced_all_the_same(tmp_path):
    output = assert_on_ranks(2, layers_shrink_at_each_check, str(tmp_path))
    assert output.count("have other sizes than before, from layer 0 to layer 3") == 3
