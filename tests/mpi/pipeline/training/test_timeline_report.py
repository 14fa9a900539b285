"""A trainer's extension leaves timelines of training steps."""

import chainer
import chainer.links as L
import numpy as np
from chainer import training

from divisible import Divisible, Plan
from divisible.schedules.actions import Action
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater, TimelineReport
from tests.support.mpiexec import assert_on_ranks


def train(comm, out):
    model = Divisible(L.Linear(4, 5), L.Linear(5, 3))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    samples = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(8)]
    iterators = chainer.iterators.SerialIterator
    updater = PipelineUpdater(iterators(samples, 4), optimizer, pipe)
    trainer = training.Trainer(updater, (2, "epoch"), out=out)
    trainer.extend(PipelineEvaluator(iterators(samples, 4, False, False), pipe))
    trainer.extend(TimelineReport())
    # Every rank's own directory: one writes.
    trainer.extend(
        TimelineReport("steps/{.updater.iteration}.png"),
        name="picture",
        trigger=(3, "iteration"),
    )
    trainer.run()


def test_trainer_leaves_timelines_of_steps(tmp_path):
    assert_on_ranks(2, train, str(tmp_path))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert files == {"timeline_2.json", "timeline_4.json", "steps/3.png"}
    # The evaluator ran before, and is not what is shown.
    timeline = Timeline.load(tmp_path / "timeline_4.json")
    done = {str(event.what) for event in timeline if isinstance(event.what, Action)}
    updates = [event.rank for event in timeline if event.category == "update"]
    assert updates == [0, 1]
    assert done == {
        f"{stage}{kind}{i}" for stage in "01" for kind in "FB" for i in "01"
    }
