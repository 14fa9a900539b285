"""The measured timeline shows what the schedule says."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan
from divisible.schedules.actions import Action
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline
from pipeline.command_line.main import main
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


def update(comm, path):
    """Updates by hand, with the context and without it."""
    model = Divisible(L.Linear(300, 300), L.Linear(300, 10))
    x, t = np.ones((8, 300), np.float32), np.zeros(8, np.int32)
    with Pipeline(model, comm, n_microbatches=2, timeout=20) as pipe:
        optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
        with pipe.recorded_update():
            pass  # There is no step to which an update could belong.
        for is_recorded in (True, False, True):
            pipe.step(x, t)
            if is_recorded:
                with pipe.recorded_update():
                    optimizer.update()
            else:
                optimizer.update()
            timeline = pipe.timeline()
            for rank in range(comm.size):
                *actions, last = timeline.rank_events(rank)
                assert (last.category == "update") == is_recorded
                assert all(event.category != "update" for event in actions)
                assert last.start >= max(event.end for event in actions)
            assert (timeline.updating > 0).tolist() == [is_recorded] * comm.size
        assert optimizer.t == 3
        if comm.rank == 0:
            timeline.save(path)


def test_updates_by_hand_are_on_the_timeline(tmp_path):
    path = tmp_path / "timeline.json"
    assert_on_ranks(2, update, str(path))
    picture = tmp_path / "timeline.png"
    result = CliRunner().invoke(main, ["timeline", str(path), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "updates" in result.output
    assert picture.stat().st_size > 0


def fail(comm):
    model = Divisible(L.Linear(3, 3))
    x, t = np.ones((2, 3), np.float32), np.zeros(2, np.int32)
    with Pipeline(model, comm, n_microbatches=1) as pipe:
        pipe.step(x, t)
        with pytest.raises(ZeroDivisionError), pipe.recorded_update():
            raise ZeroDivisionError
        assert not pipe.timeline().updating.any()


def test_an_update_that_fails_is_not_on_the_timeline():
    assert_on_ranks(1, fail)


def exchange_in_update(comm):
    """Exchanges gradients of replicas after the step, in the update."""
    x, t = np.ones((4, 6), np.float32), np.zeros(4, np.int32)
    with Grid(comm, 1) as grid:
        stage = Divisible(L.Linear(6, 6), L.Linear(6, 3))
        with Pipeline(stage, grid, n_microbatches=1, timeout=20) as pipe:
            optimizer = create_multi_node_optimizer(
                chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe, overlap=False
            ).setup(stage)
            pipe.step(x, t)
            with pipe.recorded_update():
                optimizer.update()
            events = pipe.timeline().rank_events(0)
            optimizer.close()
    exchanges = [e for e in events if "exchange" in str(e.what)]
    (update,) = [event for event in events if event.category == "update"]
    assert exchanges and max(e.end for e in exchanges) == update.start < update.end


def test_an_update_begins_when_the_exchange_of_replicas_has_ended():
    assert_on_ranks(2, exchange_in_update)


def test_measured_timeline(tmp_path):
    assert_on_ranks(3, measure, str(tmp_path / "timeline.json"))
