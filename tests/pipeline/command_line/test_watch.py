"""The commands that show a run, while it trains and afterwards."""

import json
import sys

import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from tests.support.run_folders import make_run, status
from tests.support.terminal import printed_to_a_terminal


def call(*arguments):
    return CliRunner(env={"COLUMNS": "140"}).invoke(main, list(map(str, arguments)))


def test_watch_shows_ranks_and_events(tmp_path):
    slow = (
        "rank 1 on node1 computes 1.31 times as long as usual: its layers take longer"
    )
    make_run(tmp_path, slow=[slow], planned_bubble=0.25)
    result = call("watch", tmp_path)
    assert result.exit_code == 0, result.output
    for words in (
        "runs, epoch 1.50, step 100, 1.1 steps/s, 70.4 samples/s, 4:30 left",
        "main/loss 0.512, main/accuracy 0.9",
        "bubble 38.3%, by the plan 25.0%",
        f"! {slow}",
        "begins: 9 layers in 3 stages",
    ):
        assert words in result.output
    rows = {
        line.split()[0]: line.split() for line in result.output.splitlines() if line
    }
    shares = ("56%", "1%", "33%", "6%", "4%")
    assert rows["2"][1:9] == ["node2", "6..8", *shares, "1.0"]


def test_a_narrow_terminal_has_what_ranks_do(tmp_path):
    make_run(tmp_path, state="finished")
    result = CliRunner(env={"COLUMNS": "46"}).invoke(main, ["watch", str(tmp_path)])
    titles, *rows = (
        line.split()
        for line in result.output.splitlines()
        if "has ended" in line or line.startswith("rank")
    )
    assert titles == ["rank", "computes", "waits", "memory", "does", "now"]
    assert rows[2] == ["2", "56%", "33%", "1.0", "GiB", "has", "ended"]


def test_watch_prints_a_line_of_json_a_look(tmp_path):
    make_run(tmp_path)
    result = call("watch", tmp_path, "--json", "--once")
    (line,) = result.output.splitlines()
    assert json.loads(line)["n_steps"] == 100
    # It ends with the run.
    for rank in range(3):
        status(rank, 3, state="finished").write(tmp_path / "ranks")
    result = call("watch", tmp_path, "--json", "--every", "0.1")
    assert json.loads(result.output)["state"] == "finished"


def test_watch_follows_a_run_on_a_terminal(tmp_path):
    make_run(tmp_path, state="finished")
    command = "import divisible_command; divisible_command.main()"
    command = [sys.executable, "-c", command, "watch", str(tmp_path)]
    printed = printed_to_a_terminal(command)
    assert "finished, epoch 1.50" in " ".join(printed.split())
    assert "computes" in printed


def test_watch_refuses_another_folder(tmp_path):
    result = call("watch", tmp_path)
    assert result.exit_code == 1
    assert "has no states of ranks" in result.output
    assert call("watch", tmp_path / "nowhere").exit_code == 2


def test_report_writes_one_file(tmp_path):
    pytest.importorskip("matplotlib")
    make_run(tmp_path)
    result = call("report", tmp_path)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    result = call("report", tmp_path, "-o", tmp_path / "other.html")
    assert result.output == f"written to {tmp_path / 'other.html'}\n"
    assert "http" not in (tmp_path / "other.html").read_text(encoding="utf-8")
