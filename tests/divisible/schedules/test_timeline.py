import json
import sys

import numpy as np
import pytest

from divisible import schedules
from divisible.schedules.actions import Action, Transfer
from divisible.schedules.costs import Costs
from divisible.schedules.events import Event
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline

COSTS = Costs(0.010, 0.011, 0.009, transfer=0.001, latency=0.0005)


def measured():
    """What two ranks might record."""
    return Timeline(
        [
            (0, Action(0, "F", 0), 0.0, 1.0),
            (0, Transfer(Action(0, "F", 0), 1, "send"), 1.0, 1.1),
            (0, "1B0<1", 1.1, 3.0, "wait"),
            (0, "1B0<1", 3.0, 3.1),
            (0, "0B0", 3.1, 5.0),
            (0, "all-reduce", 5.0, 5.25),
            (0, "update", 5.25, 5.5, "update"),
            (1, "0F0<0", 0.0, 1.1, "wait"),
            (1, "1F0", 1.1, 2.0),
            (1, "1B0", 2.0, 3.0),
        ],
        name="measured",
    )


def test_events():
    timeline = measured()
    assert len(timeline) == 10
    assert timeline.n_ranks == 2
    assert timeline.rank_events(0)[1] == Event(
        0, Transfer(Action(0, "F", 0), 1, "send"), 1.0, 1.1, "send"
    )
    wait = timeline.rank_events(1)[0]
    assert (str(wait.what), wait.category) == ("0F0<0", "wait")
    assert timeline.rank_events(0)[5].what == "all-reduce"
    assert timeline.rank_events(0)[6] == Event(0, "update", 5.25, 5.5, "update")
    assert timeline.peer.tolist() == [-1, 1, 1, 1, -1, -1, -1, 0, -1, -1]
    assert timeline.makespan == 5.5
    assert timeline.busy.tolist() == pytest.approx([2.9, 1.9])
    assert timeline.updating.tolist() == pytest.approx([0.25, 0])
    assert timeline.peak_in_flight.tolist() == [1, 1]


def test_events_are_sorted_by_rank_and_time():
    timeline = Timeline([(1, "1F0", 2, 3), (0, "0F1", 1, 2), (0, "0F0", 0, 1)])
    assert [str(event.what) for event in timeline] == ["0F0", "0F1", "1F0"]
    assert timeline.offsets.tolist() == [0, 2, 3]


def test_ranks_without_events_count():
    timeline = Timeline([(1, "0F0", 0, 1)], n_ranks=3)
    assert timeline.bubble.tolist() == [1.0, 0.0, 1.0]
    assert timeline.peak_in_flight.tolist() == [0, 0, 0]
    assert Timeline().makespan == 0.0
    assert Timeline().critical_path == []
    assert Timeline(n_ranks=2).bubble.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "event, message",
    [
        ((0, "0F0", 2.0, 1.0), "runs from 2.0 to 1.0"),
        ((0, "0F0", float("nan"), 1.0), "runs from nan"),
        ((-1, "0F0", 0.0, 1.0), "rank -1"),
        ((0, "0F0", 0.0, 1.0, "compute"), "category 'compute' is none of F, B"),
    ],
)
def test_impossible_events_are_refused(event, message):
    with pytest.raises(ValueError, match=message):
        Timeline([event])


def test_critical_path_of_a_measured_run():
    path = [str(event.what) for event in measured().critical_path]
    assert path == ["0F0", "1F0", "1B0", "1B0<1", "0B0", "all-reduce", "update"]


def test_a_message_that_was_there_is_not_on_the_critical_path():
    timeline = Timeline(
        [
            (0, "0F0", 0, 1),
            (0, "0F1", 1, 2),
            (1, "0F0<0", 0, 1, "wait"),
            (1, "1F0", 1, 4),
            (1, "0F1<0", 4, 4.000001, "wait"),
            (1, "1F1", 4.000001, 7),
        ]
    )
    path = [str(event.what) for event in timeline.critical_path]
    assert path == ["0F0", "1F0", "1F1"]


def test_evaluation_holds_nothing_whatever_else_is_recorded():
    timeline = Timeline(
        [(0, "0F0", 0, 1), (0, "0F0>1", 1, 2), (1, "0F0<0", 0, 2, "wait")]
    )
    assert timeline.peak_in_flight.tolist() == [0, 0]
    assert timeline.peak_held.tolist() == [0, 0]


@pytest.mark.parametrize("overlap", [True, False])
def test_save_and_load(tmp_path, overlap):
    path = tmp_path / "t.json"
    timeline = simulate(schedules.zero_bubble_v(3, 5), COSTS, overlap=overlap)
    timeline.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
    again = Timeline.load(path)
    assert (again.name, again.n_ranks) == ("zb_v", 3)
    assert [e.what for e in again] == [e.what for e in timeline]
    assert [e.category for e in again] == [e.category for e in timeline]
    np.testing.assert_allclose(again.start, timeline.start, rtol=0, atol=1e-12)
    np.testing.assert_allclose(again.end, timeline.end, rtol=0, atol=1e-12)
    assert again.peak_memory.tolist() == timeline.peak_memory.tolist()
    assert again.peak_in_flight.tolist() == timeline.peak_in_flight.tolist()


def test_save_and_load_of_a_measured_run(tmp_path):
    measured().save(tmp_path / "t.json")
    again = Timeline.load(tmp_path / "t.json")
    assert [e.what for e in again] == [e.what for e in measured()]
    assert [e.category for e in again] == [e.category for e in measured()]
    assert again.peak_memory is None


def test_chrome_trace_format(tmp_path):
    measured().save(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    events = content["traceEvents"]
    rows = {e["tid"]: e["args"] for e in events if e["name"] == "thread_name"}
    assert rows == {0: {"name": "rank 0"}, 1: {"name": "rank 1"}}
    bars = [e for e in events if e["ph"] == "X"]
    assert len(bars) == 10
    assert bars[0] == {
        "ph": "X",
        "pid": 0,
        "tid": 0,
        "name": "0F0",
        "cat": "F",
        "ts": 0.0,
        "dur": 1e6,
    }


@pytest.mark.parametrize(
    "text", ["", "[]", '{"traceEvents": []}', '{"otherData": 1}', "\xff"]
)
def test_load_refuses_other_files(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="t.json is not a timeline"):
        Timeline.load(path)


def test_summary_has_a_line_per_rank():
    text = simulate(schedules.gpipe(4, 8), Costs(1, 1, 1)).summary()
    assert text.splitlines()[0] == "gpipe: 33 s on 4 ranks"
    assert text.splitlines()[-1].split() == ["3", "24", "27.3%", "8"]


@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param(measured(), id="measured"),
        pytest.param(simulate(schedules.interleaved(3, 2, 6), COSTS), id="chunks"),
        pytest.param(
            simulate(schedules.zero_bubble_h1(4, 8), COSTS, overlap=False),
            id="messages",
        ),
        pytest.param(simulate(schedules.one_f_one_b(100, 110), COSTS), id="image"),
        pytest.param(simulate(schedules.gpipe(1, 1), COSTS), id="one rank"),
        pytest.param(Timeline(n_ranks=2), id="empty"),
    ],
)
def test_plot(tmp_path, timeline):
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.png"
    timeline.plot(path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_plot_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        measured().plot(tmp_path / "t.png")


def test_a_notebook_shows_the_picture_or_without_matplotlib_the_text(monkeypatch):
    pytest.importorskip("matplotlib")
    timeline = measured()
    assert "<svg" in timeline._repr_html_()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert timeline._repr_html_() == f"<pre>{timeline.summary()}</pre>"
