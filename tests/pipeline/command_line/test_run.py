"""``divisible run`` gives an old script the names that it uses."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from divisible.communication import flight_files
from pipeline.command_line.keep_going import Wish, _fleet
from pipeline.command_line.main import main
from pipeline.supervision.launching import Job

SCRIPT = "import numpy as np\nprint(np.float is float)\n"


@pytest.mark.parametrize("options, code", [([], 0), (["--compat", ""], 1)])
def test_removed_names_come_back_unless_they_are_not_wanted(tmp_path, options, code):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    program = "import divisible_command as it; it.main()"
    command = [sys.executable, "-c", program, "run", *options, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == code, result.stderr
    assert ("script.py:2: RuntimeWarning" in result.stderr) == (code == 0)


@pytest.mark.parametrize(
    "mode, words", [("nams", "no mode 'nams'"), ("chainer1", "CHAINER_COMPAT=chainer1")]
)
def test_a_mode_that_cannot_be_turned_on_is_refused(tmp_path, mode, words):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(main, ["run", "--compat", mode, str(path)])
    assert result.exit_code and words in result.output


@pytest.mark.parametrize(
    "options, words",
    [
        (["--keep-going"], "give -n"),
        (["-n", "2"], "need --keep-going"),
        (["--restarts", "2"], "need --keep-going"),
        (["--keep-going", "-n", "2", "--launcher", "no-such-launcher"], "no-such-"),
        (["--keep-going", "-n", "0"], "not positive"),
    ],
)
def test_wrong_options_of_a_supervisor_are_refused(tmp_path, options, words):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(main, ["run", *options, str(path)])
    assert result.exit_code in (1, 2) and words in result.output, result.output


def test_a_supervisor_is_refused_below_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.command_line.run.is_one_of_several", lambda: True)
    options = ["--keep-going", "-n", "2", str(tmp_path / "script.py")]
    result = CliRunner().invoke(main, ["run", *options])
    assert result.exit_code == 2 and "leave out mpiexec" in result.output


@pytest.mark.parametrize(
    "options, words",
    [
        (["--hosts", "a,b", "--spares", "b"], "b is in --hosts and in --spares"),
        (["--spares", "c"], "give --hosts"),
        (["--hosts", "a:1,b:1"], "-n 3 are more ranks than"),
        (["--hosts", "a,b", "--launcher", "mine"], "'mine' is not known"),
        (["--hosts", "a b,c"], "'a b' is no host"),
        (["--plan", "plan-{ranks}.json"], "there is no plan plan-3.json"),
    ],
)
def test_hosts_and_plans_that_do_not_go_together_are_refused(
    tmp_path, monkeypatch, options, words
):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "records"))
    script = tmp_path / "script.py"
    given = ["run", "--keep-going", "-n", "3", *options, str(script)]
    result = CliRunner().invoke(main, given)
    assert result.exit_code in (1, 2) and words in result.output, result.output


def test_fewer_ranks_need_a_plan_of_their_own(tmp_path):
    for n_ranks in (2, 4):
        (tmp_path / f"plan-{n_ranks}.json").touch()
    plan = str(tmp_path / "plan-{ranks}.json")
    wish = Wish(4, plan=plan, hosts="a:2,b:1,c:1", shrink=True)
    fleet = _fleet(wish, Job(["mpiexec", "{hosts}"], []))
    fleet.out_of_reach = {"c"}
    assert str(fleet.place()) == "2 ranks (a:2)"
    fleet = _fleet(wish._replace(plan=None), Job(["mpiexec", "{hosts}"], []))
    fleet.out_of_reach = {"c"}
    assert str(fleet.place()) == "3 ranks (a:2, b:1)"


def test_hosts_of_a_job_are_taken_where_the_run_is_to_outlive_some(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x3)")
    job = Job(["srun"], [])
    assert str(_fleet(Wish(4, shrink=True), job).place()) == "4 ranks (n1:2, n2:2)"
    # The launcher knows them as well.
    assert str(_fleet(Wish(4), job).place()) == "4 ranks"
