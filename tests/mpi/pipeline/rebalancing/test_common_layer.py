"""Hosts that are slow from the start, without a profile: the right one is named."""

import json
import time

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

N_LAYERS, EVERY, SLOW, SECONDS = 9, 4, 1, 0.008
# How many times as long a layer takes: on this rank's host, and as it is.
slowness, costs = [1], [1] * N_LAYERS
fails_after = [None]


class Layer(chainer.Chain):
    """A layer that takes a time, whatever else this machine does."""

    def __init__(self, number):
        super().__init__(linear=L.Linear(6, 6))
        self.number = number

    def forward(self, x):
        if fails_after[0] is not None:
            fails_after[0] -= 1
            if fails_after[0] < 0:
                raise RuntimeError("out of something")
        time.sleep(SECONDS * costs[self.number] * slowness[0])
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


def slow_from_the_start(comm, out):
    slowness[0] = 3 if comm.rank == SLOW else 1
    watch = Rebalance(build, every=EVERY)
    watched = train(comm, f"{out}/slow", 3 * EVERY + 1, watch)
    slowness[0] = 0
    # The comparison changes no number, and draws none.
    assert watched == train(comm, out, 3 * EVERY + 1)
    slowness[0] = 1
    # The same stage takes as long, on a host as fast as the others.
    costs[3:6] = [3] * 3
    train(comm, f"{out}/costly", 2 * EVERY + 1, Rebalance(build, every=EVERY))
    # Nothing can be compared: the layer fails where it is made for that.
    watch = Rebalance(build, every=EVERY)

    @chainer.training.make_extension(trigger=(EVERY, "iteration"), priority=1001)
    def arm(trainer):
        is_first = trainer.updater.iteration == EVERY
        fails_after[0] = 1 if is_first and comm.rank == 2 else None

    @chainer.training.make_extension(trigger=(EVERY, "iteration"), priority=999)
    def disarm(trainer):
        fails_after[0] = None

    bar = chainer.training.extensions.ProgressBar(update_interval=100)
    train(comm, f"{out}/unknown", 2 * EVERY + 1, arm, watch, disarm, bar)


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
    # By what was slept, 3 times as long on rank 1, also after the move.
    for check in slow:
        assert np.argmin(check["speeds"]) == SLOW
    assert slow[0]["speeds"] == pytest.approx([1, 1 / 3, 1], rel=0.35)
    # Times that scatter, as on a busy machine, may keep layers where they are.
    for check in slow:
        if check["moved"] and not check["went_back"]:
            assert np.diff(check["new_cuts"])[SLOW] <= 2
            assert "rank 1 has 0." in check["reason"]
            assert f"iteration {check['iteration']}: rank 1 on" in output
    said = stragglers(tmp_path / "slow")
    assert "rank 1 on" in said
    assert "rank 0 on" not in said and "rank 2 on" not in said, said

    costly = checks(tmp_path / "costly")
    # On a busy machine any rank may be slow, but not as slow as layers are costly.
    assert costly[0]["speeds"][SLOW] > 0.6
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
