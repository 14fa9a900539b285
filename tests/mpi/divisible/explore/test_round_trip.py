"""From the page to a file, to a run on two ranks, and back to the page."""

import chainer
import chainer.links as L
import numpy as np

from divisible import Divisible
from divisible.explore.server import Answers
from divisible.explore.sources import Sources
from divisible.schedules import Schedule
from divisible.schedules.timeline import Timeline
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks


def run_text(comm, text, path):
    schedule = Schedule.parse(text)
    model = Divisible(*[L.Linear(50, 50) for _ in range(4)])
    pipe = Pipeline(model, comm, schedule=schedule, timeout=20)
    pipe.setup(chainer.optimizers.SGD(0.1))
    for _ in range(3):
        pipe.step(np.ones((16, 50), np.float32), np.zeros(16, np.int32))
    timeline = pipe.timeline()
    if comm.rank == 0:
        timeline.save(path)


def test_what_was_edited_on_the_page_runs_and_is_shown_again(tmp_path):
    page = Answers(Sources())
    question = {"schedule": "zb_h1", "ranks": 2, "microbatches": 4}
    text = page.get("answer", {"question": question})["text"]
    actions = [str(action) for action in Schedule.parse(text).actions[0]]
    # The first weight gradient waits until after the next forward.
    place = {"rank": 0, "source": actions.index("0W0"), "target": actions.index("0F2")}
    edited = page.get("move", {"question": question, **place})["text"]
    assert edited != text

    path = tmp_path / "timeline.json"
    assert_on_ranks(2, run_text, edited, str(path))

    measured = Timeline.load(path)
    page = Answers(Sources(measured=measured))
    start = page.get("start", {})
    assert Schedule.parse(start["question"]["text"]) == Schedule.parse(edited)
    found = page.get("answer", {"question": start["question"]})
    # The run waits for messages, which this question does not have.
    assert 0 < found["seconds"] <= 1.01 * measured.makespan
    assert "computing" in found["lost"]["text"]
    assert len(found["lost"]["lost"]) == 2
