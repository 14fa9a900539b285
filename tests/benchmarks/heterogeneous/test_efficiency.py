"""The command that measures Fig. 11."""

import sys

import pytest

from benchmarks.common import json_lines
from benchmarks.heterogeneous import efficiency, parameters
from benchmarks.heterogeneous.points import FIG_12_CHECKS, Point, to_json


@pytest.fixture
def run(monkeypatch):
    """Runs the command; nothing is measured but what `measure` would be given."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", efficiency.__spec__)
    monkeypatch.setattr(parameters, "findings", lambda: [])

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["efficiency", *map(str, words)])
        efficiency.main()

    return command


def points_of(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["efficiency", *words])
    return efficiency.wanted(efficiency.parse())


def test_all_points_of_the_paper_are_measured(monkeypatch):
    points = points_of(monkeypatch)
    assert [(p.condition, p.hosts) for p in points] == [
        (condition, hosts) for condition in "AB" for hosts in range(4, 9)
    ]
    assert {p.rate for p in points} == {"1gbit"} and {p.factor for p in points} == {16}
    by_checks = {p.checks: p for p in points}
    assert by_checks.pop(FIG_12_CHECKS) == Point("B", 4, checks=FIG_12_CHECKS)
    assert [*by_checks] == [Point.checks]


@pytest.mark.parametrize("hosts", [6, 7])
def test_any_number_of_hosts_is_measured(monkeypatch, hosts):
    points = points_of(monkeypatch, "--hosts", str(hosts))
    assert [p.hosts for p in points] == [hosts] * 2


@pytest.mark.parametrize("hosts", ["1", "9", "many"])
def test_hosts_that_the_conditions_do_not_have_are_refused(monkeypatch, capsys, hosts):
    with pytest.raises(SystemExit, match="2"):
        points_of(monkeypatch, "--hosts", hosts)
    assert "--hosts" in capsys.readouterr().err


def test_quick_and_simulated_pages_do_not_replace_the_measured_one(monkeypatch):
    for word in ("--quick", "--simulate"):
        monkeypatch.setattr(sys, "argv", ["efficiency", word])
        arguments = efficiency.parse()
        assert arguments.page == arguments.data == efficiency.DATA / word[2:]
    monkeypatch.setattr(sys, "argv", ["efficiency"])
    arguments = efficiency.parse()
    assert (arguments.page, arguments.data) == (efficiency.PAGE, efficiency.DATA)


def test_measured_points_are_not_measured_again(tmp_path):
    file, points = tmp_path / "points.jsonl", [Point("A", 4), Point("A", 5)]
    assert efficiency.missing(file, points) == points
    json_lines.append(file, {"point": to_json(points[0])})
    json_lines.append(file, {"point": to_json(Point("A", 5, rounds=9))})
    assert efficiency.missing(file, points) == points[1:]


def test_the_command_writes_a_page_and_goes_on_where_it_was(run, tmp_path, capsys):
    words = ("--simulate", "--factor", 1, "--output", tmp_path, "--conditions", "B")
    run(*words, "--hosts", 6)
    assert "1 of 1 points are not yet" in capsys.readouterr().out
    run(*words, "--hosts", 6, 7)
    assert "1 of 2 points are not yet" in capsys.readouterr().out
    text = (tmp_path / "README.md").read_text()
    assert "| method | 6 hosts | 7 hosts |" in text
    run(*words, "--hosts", 6, 7)
    assert "0 of 2 points are not yet" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == text
