"""A report is one page that holds all of a run, and asks no network for anything."""

import re
from html.parser import HTMLParser

import pytest

from divisible.schedules import Timeline
from pipeline.rebalancing.log import LoggedCheck
from pipeline.watching.report import newest_timeline, report_html
from pipeline.watching.run_view import RunWatch
from tests.support.run_folders import make_run


class Page(HTMLParser):
    """Collects the texts of a page, and all that it would load."""

    def __init__(self, page):
        super().__init__()
        self.loads, self.texts, self.open = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def test_a_page_has_all_parts_and_loads_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path, slow=["rank 1 on node1 computes 1.3 times as long"])
    checks = [
        LoggedCheck(
            *(20 * i, 10.0 * i, ["a", "b", "c"], [1.0, 1.0, 1.0], [0, 3, 6, 9]),
            *(None, 1.0, 1.0, "balanced", None),
        )
        for i in (1, 2)
    ]
    moved = {"layers": [3], "bytes": 4096, "seconds": 0.25}
    checks.append(checks[0]._replace(iteration=60, new_cuts=[0, 4, 6, 9], moved=moved))
    for check in checks:
        check.append_to(run / "rebalancing.jsonl")
    page = Page(report_html(RunWatch(run).look()))
    assert page.open == []
    assert page.loads
    assert all(each.startswith("data:image/svg+xml;base64,") for each in page.loads)
    for words in (
        "rank 1 on node1 computes 1.3 times as long",
        "validation/main/loss",
        "node2",
        "timeline_100.json",
        "the plan's table",
        "slower <than> 1f1b",
        "3 checks, 1 move",
        "1 layer moved, from the cuts [0, 3, 6, 9] to [0, 4, 6, 9]: 4.0 KiB",
        "the ranks have ended, lost: rank 1 died",
    ):
        assert words in page.text


def test_the_timeline_is_compared_with_its_prediction(tmp_path):
    pytest.importorskip("matplotlib")
    view = RunWatch(make_run(tmp_path)).look()
    predicted = Timeline(
        [(0, "0F0", 0, 1), (1, "1F0", 1, 2), (1, "1B0", 2, 3), (0, "0B0", 3, 5)],
        name="plan",
    )
    text = Page(report_html(view, predicted)).text
    assert "predicted for plan: 5 s; lost +1 s" in text
    other = Timeline([(0, "0F1", 0, 1), (1, "1F1", 1, 2)])
    with pytest.raises(ValueError, match="not in the predicted timeline"):
        report_html(view, other)


def test_a_page_of_a_run_without_other_files_says_what_is_missing(tmp_path):
    run = make_run(tmp_path, planned_step=0.7, planned_bubble=0.1, planned_seconds=0.4)
    for name in ("log", "timeline_100.json", "supervisor.jsonl"):
        (run / name).unlink()
    (run / "ranks" / "journal.jsonl").unlink()
    text = Page(report_html(RunWatch(run).look())).text
    for words in (
        "there is no file log, which LogReport writes",
        "there is no timeline in the folder",
        "the run has no journal",
        "none: the trainer has no Rebalance",
        "bubble 38.3% 10.0%",
        "rank 2 computes 500 ms 400 ms",
    ):
        assert words in text


def test_names_from_files_are_no_html(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path, host="<script>alert(1)</script>", values={"<b>": 1.0})
    (run / "log").write_text('[{"$<i>\\u001b$": 1.0, "iteration": 1}]')
    page = report_html(RunWatch(run).look())
    assert re.findall(r"<(?:script|b|i)\b", page) == []
    assert "\x1b" not in page
    (run / "log").write_text("[1]")
    assert (
        "log is not a log of LogReport: it holds 1"
        in Page(report_html(RunWatch(run).look())).text
    )


def test_the_newest_timeline_is_found_among_other_files(tmp_path):
    assert newest_timeline(tmp_path) is None
    (tmp_path / "plan.json").write_text("{}")
    Timeline([], n_ranks=1).save(tmp_path / "empty.json")
    assert newest_timeline(tmp_path) is None
    Timeline([(0, "0F0", 0, 1)]).save(tmp_path / "t.json")
    assert newest_timeline(tmp_path)[0] == "t.json"
