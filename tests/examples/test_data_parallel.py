"""A ChainerMN script, and the one that its diff makes of it, train alike."""

import difflib
import json
import re

import pytest

from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

FOLDER = ROOT / "examples" / "data_parallel"
BEFORE = (FOLDER / "train_chainermn.py").read_text()
AFTER = (FOLDER / "train.py").read_text()
# As between two hosts, on one.
IN_8_BITS = AFTER.replace('"int8"', '"int8", local_size=1, minimum=0')
assert IN_8_BITS != AFTER


def train(script, folder):
    """Returns the losses and the test accuracies of the epochs."""
    folder.mkdir()
    (folder / "script.py").write_text(script)
    argv = [folder / "script.py", "--epoch", "4", "--units", "100", "--out", folder]
    # The script is outside of the repository, which an editable install would find.
    result = mpiexec(2, argv, env={"PYTHONPATH": str(ROOT)}, has_project=True)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("main/loss   validation/main/loss") == 1
    assert "Warning" not in result.stdout
    log = json.loads((folder / "log").read_text())
    losses = [entry["main/loss"] for entry in log]
    return losses, [entry["validation/main/accuracy"] for entry in log]


def test_both_scripts_learn_digits(tmp_path):
    before, accuracies = train(BEFORE, tmp_path / "before")
    assert len(accuracies) == 4 and accuracies[-1] > 0.93
    after, accuracies = train(AFTER, tmp_path / "after")
    assert len(accuracies) == 4 and accuracies[-1] > 0.93
    # ChainerMN has dropped a gradient.
    assert after == pytest.approx(before, rel=0.2)

    coded, accuracies = train(IN_8_BITS, tmp_path / "coded")
    assert accuracies[-1] > 0.93
    assert coded != after
    assert coded == pytest.approx(after, rel=0.05)


def test_the_readme_shows_what_differs():
    readme = (FOLDER / "README.md").read_text()
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    lines = difflib.ndiff(BEFORE.splitlines(), AFTER.splitlines())
    differing = [line for line in lines if line[0] in "+-" and line[2:].strip()]
    assert sorted(line[0] + line[2:] for line in differing) == sorted(
        shown.splitlines()
    )
