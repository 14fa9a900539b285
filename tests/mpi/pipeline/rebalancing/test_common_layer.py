"""Hosts that are slow from the start, without a profile: the right one is named."""

import json

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer
from click.testing import CliRunner

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater, Rebalance
from pipeline.command_line.main import main
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.told_times import SECONDS, Clock, told_layers

N_LAYERS, EVERY, SLOW = 9, 4, 1
fails_after = [None]


class Layer(chainer.Chain):
    def __init__(self, number):
        super().__init__(linear=L.Linear(6, 6))
        self.number = number

    def forward(self, x):
        if fails_after[0] is not None:
            fails_after[0] -= 1
            if fails_after[0] < 0:
                raise RuntimeError("out of something")
        return self.linear(x)


def build():
    return Divisible(*map(Layer, range(N_LAYERS)))


def train(comm, out, end, *extensions):
    np.random.seed(1)
    stage = build().divide(*Plan.uniform(N_LAYERS, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.01).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=60)
    iterator = None
    if pipe.is_first:
        ((x, t),) = make_batches([40], n_classes=6)
        data = chainer.datasets.TupleDataset(x, t)
        iterator = chainer.iterators.SerialIterator(data, 8)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    trainer = Trainer(updater, (end, "iteration"), out=out)
    for each in extensions:
        trainer.extend(each)
    losses = []
    trainer.extend(
        lambda trainer: losses.append(trainer.observation["main/loss"]),
        name="losses",
        trigger=(1, "iteration"),
    )
    trainer.run()
    pipe.close()
    return losses, np.random.rand()


def watched(comm, out, end, *extensions, slow_rank=None, costs=(1,) * N_LAYERS):
    """Trains where layers have these costs, three times as much on the slow rank."""
    slowness = 3 if comm.rank == slow_rank else 1
    clock = Clock(
        slow_rank, 0, end + 1, lambda stage: sum(costs[layer.number] for layer in stage)
    )
    with told_layers(lambda position: SECONDS * costs[position] * slowness):
        watch = Rebalance(build, every=EVERY)
        return train(comm, out, end, clock, watch, *extensions)


def slow_from_the_start(comm, out):
    slow = watched(comm, f"{out}/slow", 3 * EVERY + 1, slow_rank=SLOW)
    # The comparison changes no number, and draws none.
    assert slow == train(comm, out, 3 * EVERY + 1)
    # The same stage takes as long, on a host as fast as the others.
    costs = [*[1] * 3, *[3] * 3, *[1] * 3]
    watched(comm, f"{out}/costly", 2 * EVERY + 1, costs=costs)

    @chainer.training.make_extension(trigger=(EVERY, "iteration"), priority=1001)
    def arm(trainer):
        is_first = trainer.updater.iteration == EVERY
        fails_after[0] = 1 if is_first and comm.rank == 2 else None

    @chainer.training.make_extension(trigger=(EVERY, "iteration"), priority=999)
    def disarm(trainer):
        fails_after[0] = None

    bar = chainer.training.extensions.ProgressBar(update_interval=100)
    # Nothing can be compared: the layer fails where it is made for that.
    watched(comm, f"{out}/unknown", 2 * EVERY + 1, arm, disarm, bar, costs=costs)


def stragglers(path):
    result = CliRunner().invoke(main, ["stragglers", str(path / "rebalancing.jsonl")])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def checks(path):
    lines = (path / "rebalancing.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_host_that_is_slow_from_the_start_is_told_from_costly_layers(tmp_path):
    output = assert_on_ranks(3, slow_from_the_start, str(tmp_path))
    slow = checks(tmp_path / "slow")
    # Also after the move.
    for check in slow:
        assert check["speeds"] == pytest.approx([1, 1 / 3, 1])
    assert [bool(check["moved"]) for check in slow] == [True, False, False]
    assert np.diff(slow[0]["new_cuts"])[SLOW] == 1
    assert "rank 1 has 0.33" in slow[0]["reason"]
    assert f"iteration {EVERY}: rank 1 on" in output
    said = stragglers(tmp_path / "slow")
    assert "rank 1 on" in said
    assert "rank 0 on" not in said and "rank 2 on" not in said, said

    costly = checks(tmp_path / "costly")
    assert costly[0]["speeds"] == pytest.approx([1, 1, 1])
    assert not any("rank 1 has" in check["reason"] for check in costly)
    assert "rank 1 on" not in stragglers(tmp_path / "costly")

    unknown = checks(tmp_path / "unknown")
    assert all(check["speeds"] is None for check in unknown)
    assert "(the ranks could not all compute one layer: rank 2: layer" in output
    # What a progress bar left there is erased first.
    assert f"\033[Jiteration {EVERY}: whether hosts are slow" in output
    assert "RuntimeError: out of something" in output
    assert not any("of the speed of others" in check["reason"] for check in unknown)
    said = stragglers(tmp_path / "unknown")
    assert "no rank fell behind" in said and "of the speed of others" not in said
    assert "2 checks had nothing to compare ranks by" in said
