"""The measured timeline shows what the schedule says."""

import chainer.links as L
import numpy as np

from divisible import Divisible, Plan
from divisible.schedules.actions import Action
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks


def measure(comm, path):
    model = Divisible(*[L.Linear(300, 300) for _ in range(6)])
    stage = model.divide(*Plan.uniform(6, comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=4, timeout=20)
    x, t = np.ones((400, 300), np.float32), np.zeros(400, np.int32)
    for _ in range(3):
        pipe.step(x, t)
    # Not of what comes in between.
    pipe.evaluate(x, t)
    pipe.predict(x)
    timeline = pipe.timeline()
    schedule = pipe.schedule
    for rank in range(comm.size):
        events = timeline.rank_events(rank)
        done = [e.what for e in events if isinstance(e.what, Action)]
        assert done == list(schedule.actions[rank])
        assert all(a.end <= b.start + 1e-9 for a, b in zip(events, events[1:]))
    # A result is used after it was computed, on the one clock of all ranks.
    ends = {e.what: e.end for e in timeline if isinstance(e.what, Action)}
    for event in timeline:
        action = event.what
        if isinstance(action, Action) and action.kind == "F" and action.stage > 0:
            before = Action(action.stage - 1, "F", action.microbatch)
            assert ends[before] <= event.end
    assert timeline.start.min() == 0
    assert ((timeline.bubble >= 0) & (timeline.bubble < 1)).all()
    if comm.rank == 0:
        timeline.save(path)
        assert len(Timeline.load(path)) == len(timeline)


def test_measured_timeline(tmp_path):
    assert_on_ranks(3, measure, str(tmp_path / "timeline.json"))
