"""The programs in the documentation print what the pages say."""

import re

import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from tests.support.matrix import matrix
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

PROGRAMS = ROOT / "docs" / "programs"
NUMBER = re.compile(r"\d+\.\d+")


def run(name, n_ranks, **options):
    return mpiexec(
        n_ranks,
        [PROGRAMS / f"{name}.py"],
        # An editable install would find the packages, another one may not.
        env={"PYTHONPATH": str(ROOT)},
        **options,
    )


@pytest.mark.parametrize(
    "name, n_ranks, printed",
    [
        ("three_steps", 3, "three_steps"),
        *matrix(
            ("three_steps", 1, "three_steps"),
            ("chainermn_before", 2, "chainermn"),
        ),
        ("chainermn_after", 2, "chainermn"),
    ],
)
def test_programs_print_what_the_pages_say(name, n_ranks, printed):
    result = run(name, n_ranks, has_project=True)
    assert result.returncode == 0, result.stdout
    expected = (PROGRAMS / f"{printed}.txt").read_text()
    assert NUMBER.sub("#", result.stdout) == NUMBER.sub("#", expected)
    # Another BLAS adds in another order.
    mine, theirs = (
        [float(number) for number in NUMBER.findall(text)]
        for text in (result.stdout, expected)
    )
    assert mine == pytest.approx(theirs, rel=1e-2, abs=5e-3)


def run_commands(page, of_plan=""):
    """Runs the commands of a page, with more options for ``divisible plan``."""
    text = (ROOT / "docs" / "howto" / f"{page}.rst").read_text()
    text = text.replace("\\\n", "")
    # "divisible run" trains, with a script of the reader's.
    commands = re.findall(r"^   \$ (divisible (?!run\b).*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        command += of_plan if command.startswith("divisible plan ") else ""
        result = CliRunner().invoke(main, command.split()[1:])
        assert result.exit_code == 0, result.output


def epochs(text):
    lines = text.replace("\x1b[J", "").splitlines()
    return [tuple(map(float, line.split())) for line in lines if line[:1].isdigit()]


def train(n_ranks, out, *arguments):
    program = PROGRAMS / "trainer.py"
    result = mpiexec(
        n_ranks,
        ["-m", "pipeline", program, "--out", out, *arguments],
        env={"PYTHONPATH": str(ROOT)},
        has_project=True,
    )
    assert result.returncode == 0, result.stdout
    return epochs(result.stdout)


def test_a_run_continues_on_fewer_ranks(tmp_path, monkeypatch):
    expected = epochs((PROGRAMS / "trainer.txt").read_text())
    assert len(expected) == 3
    begun = train(3, tmp_path / "result", "--epoch", "2")
    continued = train(2, tmp_path / "result", "--resume", "auto")
    for rows in (begun, continued):
        wanted = expected[: len(rows)]
        assert rows == [pytest.approx(row, rel=1e-2, abs=5e-3) for row in wanted]
    assert (len(begun), len(continued)) == (2, 3)
    monkeypatch.chdir(tmp_path)
    run_commands("resume")
    assert len(list((tmp_path / "result").glob("*_on_4_stages/stage-*.npz"))) == 4
    assert (tmp_path / "model.npz").exists()


@pytest.mark.parametrize("of_plan", [" --schedule 1f1b --recompute never", *matrix("")])
def test_the_commands_run(tmp_path, monkeypatch, of_plan):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    run_commands("cut", of_plan)
    assert (tmp_path / "step.png").exists()


def test_the_command_for_shapes_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    run_commands("memory")


@pytest.mark.parametrize("name", ["disagreement", "left", "stall"])
def test_programs_fail_as_the_pages_say(name):
    result = run(name, 2)
    assert result.returncode != 0
    assert (PROGRAMS / f"{name}.txt").read_text() in result.stdout
    assert result.stdout.count("Traceback") == 1, result.stdout
