"""The command ``divisible explore``: files of each kind, and the address it prints."""

import http.client
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from divisible import Plan, simulate
from divisible.schedules import Costs, Schedule, gpipe
from divisible.schedules.timeline import Timeline
from pipeline.command_line.main import main
from tests.support.explored import plan_of, uneven_profile


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["explore", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_printed_address_answers_until_the_command_is_interrupted():
    command = "from pipeline.command_line.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "explore", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(
            re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1]
        )
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "ended\n"
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_files_of_each_kind_are_known_by_what_they_hold(tmp_path):
    profile, plan = tmp_path / "p.json", tmp_path / "plan.json"
    timeline, page = tmp_path / "t.json", tmp_path / "page.html"
    uneven_profile().save(profile)
    plan_of().save(plan)
    simulate(gpipe(2, 3), Costs(1, 1, 1)).save(timeline)
    assert "written to" in run(plan, profile, "-o", page)
    assert '"cuts":[0,5,10]' in page.read_text(encoding="utf-8")
    run(timeline, "-o", page)
    assert "gpipe: 3 microbatches" in page.read_text(encoding="utf-8")
    text = tmp_path / "mine.txt"
    mine = Schedule.parse(str(gpipe(2, 3)).replace("gpipe", "mine"))
    text.write_text(str(mine))
    run(text, "-o", page)
    assert "mine: 3 microbatches" in page.read_text(encoding="utf-8")
    # The order of the text, with the layers of the plan and its cuts.
    run(plan, profile, text, "-o", page)
    assert "mine: 3 microbatches" in page.read_text(encoding="utf-8")
    assert '"cuts":[0,5,10]' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["plan.json"], "the plan does not name its profiles"),
        (["plan.json", "plan.json"], "there are 2 plans: give one"),
        (["t.json", "t.json"], "there are 2 timelines: give one"),
        (["mine.txt", "mine.txt"], "there are 2 schedules: give one"),
        (["fault.txt"], "0B0 runs before 0F0, whose result it needs"),
        (["other.json"], "or the text of a schedule: it is another kind of file"),
        (["broken.json"], "is not a plan, a profile, a timeline or the text of"),
        (["none.json"], "does not exist"),
    ],
)
def test_files_that_do_not_go_are_refused(tmp_path, monkeypatch, names, words):
    monkeypatch.chdir(tmp_path)
    plan_of().save("plan.json")
    simulate(gpipe(2, 3), Costs(1, 1, 1)).save("t.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "mine.txt").write_text(str(gpipe(2, 3)))
    fault = "mine: 1 microbatch, 1 stage on rank 0\nrank 0  0B0 0F0"
    (tmp_path / "fault.txt").write_text(fault)
    assert words in run(*names, code=2)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["part.json"], "0B1 (or its halves I and W) is missing"),
        (["large.json", "p.json"], "48000 actions, and the page draws 40000"),
    ],
)
def test_what_the_page_cannot_draw_is_refused_before_it_opens(
    tmp_path, monkeypatch, names, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.command_line.explore.Server", None)
    uneven_profile().save("p.json")
    Plan([0, 5, 10], 8000, "1f1b").save("large.json")
    Timeline([(0, "0F0", 0, 1), (0, "0F1", 1, 2), (0, "0B0", 2, 3)]).save("part.json")
    assert words in run(*names, code=1)
