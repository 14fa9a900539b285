"""Compression by trying on two ranks finds what it finds on one."""

import json

import pytest

from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

SCRIPT = ROOT / "tests" / "support" / "digits_script.py"
PROGRAM = "import divisible_command as it; it.main()"


def session(n, folder, env=None):
    options = ["--budget", "accuracy=-5", "--bytes", "0.3", "--rounds", "1"]
    options += ["--methods", "magnitude,int4", "--degrees", "0.7", "-o", folder]
    argv = ["-c", PROGRAM, "compress", SCRIPT, *options, "--", "pipeline", 3]
    return mpiexec(n, argv, timeout=60, env=env)


def journal(folder):
    return json.loads((folder / "journal.json").read_text())


def test_ranks_try_together_and_go_on_after_a_kill(tmp_path):
    results = []
    for n in (1, 2):
        folder = tmp_path / str(n)
        env = {"TEST_OUT": str(tmp_path / "out")}
        env["TEST_EVALUATIONS"] = str(tmp_path / f"n_{n}")
        if n == 2:
            killed = session(n, folder, {**env, "TEST_LAST_EVALUATION": "5"})
            assert killed.returncode == 9, killed.stdout
            assert killed.stdout.count("ends all ranks") == 1
        result = session(n, folder, env)
        assert result.returncode == 0, result.stdout
        assert result.stdout.count("as wanted") == 1
        results.append(journal(folder))
    one, two = results
    assert two["base"] == pytest.approx(one["base"], abs=0.02)
    assert [each["way"] for each in two["rounds"]] == [1.0]
    assert two["rounds"][0]["is_kept"]
    assert two["rounds"][0]["bytes"].keys() == one["rounds"][0]["bytes"].keys()
    tables = [
        json.loads((tmp_path / str(n) / "sensitivity.json").read_text()) for n in (1, 2)
    ]
    for found, expected in zip(tables[1]["trials"], tables[0]["trials"]):
        assert found["layer"] == expected["layer"]
        assert found["bytes"] == expected["bytes"]
        assert found["metric"] == pytest.approx(expected["metric"], abs=0.02)
