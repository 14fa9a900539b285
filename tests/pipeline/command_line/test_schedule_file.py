"""Files of schedules where commands take the name of one."""

import pytest
from click.testing import CliRunner

from divisible import Plan
from divisible.explore.editing import moved
from divisible.schedules import gpipe, one_f_one_b, zero_bubble_v
from pipeline.command_line.main import main
from tests.support.explored import plan_of, uneven_profile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    plan_of().save("plan.json")
    uneven_profile().save("p.json")
    for name, schedule in (
        ("mine.txt", moved(one_f_one_b(2, 4), rank=0, source=3, target=2)),
        ("gpipe.txt", gpipe(2, 4)),
        ("long.txt", gpipe(2, 8)),
        ("three.txt", gpipe(3, 4)),
        ("v.txt", zero_bubble_v(2, 4)),
    ):
        (tmp_path / name).write_text(f"{schedule}\n")
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def rows(output):
    """Returns the lines of a table of ranks."""
    return [line for line in output.splitlines() if line.strip()[:1].isdigit()]


def test_a_file_is_simulated_like_the_name_of_the_same_schedule(folder):
    of_file = run("simulate", "plan.json", "p.json", "--schedule", "gpipe.txt")
    of_name = run("simulate", "plan.json", "p.json", "--schedule", "gpipe")
    assert rows(of_file) == rows(of_name)
    assert "unlike what the plan was made for (schedule)" in of_file
    assert "1f1b edited" in run(
        "simulate", "plan.json", "p.json", "--schedule", "mine.txt"
    )


def test_the_microbatches_are_those_of_the_file(folder):
    output = run("simulate", "plan.json", "p.json", "--schedule", "long.txt")
    more = ("--schedule", "gpipe", "--microbatches", 8)
    assert rows(output) == rows(run("simulate", "plan.json", "p.json", *more))


def test_a_model_is_cut_for_the_schedule_of_a_file(folder):
    arguments = ("plan", "p.json", "--stages", 2, "--schedule", "long.txt")
    run(*arguments, "--plot", "step.svg")
    plan = Plan.load("plan.json")
    assert (plan.n_microbatches, plan.schedule) == (8, None)
    assert (folder / "step.svg").exists()
    by_name = ("--schedule", "gpipe", "--microbatches", 8, "-o", "named.json")
    run("plan", "p.json", "--stages", 2, *by_name)
    assert Plan.load("named.json").stages == plan.stages


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, ("simulate", "plan.json", "p.json", "--schedule", "none"), "choose one of"),
        (1, ("simulate", "plan.json", "p.json", "--schedule", "three.txt"), "3 stages"),
        (1, ("simulate", "plan.json", "p.json", "--schedule", "v.txt"), "4 stages"),
        (
            2,
            ("simulate", "plan.json", "--schedule", "mine.txt", "--microbatches", 8),
            "the schedule of the file has 4",
        ),
        (2, ("plan", "p.json", "--stages", 4, "--schedule", "v.txt"), "one stage on"),
        (1, ("plan", "p.json", "--stages", 3, "--schedule", "mine.txt"), "of 2 stages"),
        (2, ("plan", "p.json", "--ranks", 2, "--schedule", "mine.txt"), "--stages"),
        (2, ("plan", "p.json", "--ranks", 2, "--schedule", "none"), "choose one of"),
    ],
)
def test_schedules_that_do_not_go_are_refused(folder, code, arguments, words):
    assert words in " ".join(run(*arguments, code=code).split())
