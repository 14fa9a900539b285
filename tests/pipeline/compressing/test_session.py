"""Compression by trying on one rank; tests/mpi/pipeline/compressing has two."""

import json
import os
import signal
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_digits

from divisible import Divisible
from model_compression import CompressionPlan, apply
from pipeline.command_line.main import main
from tests.support.processes import ROOT

SCRIPT = str(ROOT / "tests" / "support" / "digits_script.py")
OPTIONS = ["--methods", "magnitude,int8,int4", "--degrees", "0.5,0.8", "--rounds", "2"]


@pytest.fixture(autouse=True)
def keep_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, handler)


def compress(*options, kind="pipeline", epochs=4, script=SCRIPT, last=0):
    arguments = ["compress", script, *OPTIONS, *options, "--", kind, str(epochs)]
    os.environ["TEST_LAST_EVALUATION"] = str(last)
    try:
        return CliRunner().invoke(main, arguments)
    finally:
        del os.environ["TEST_LAST_EVALUATION"]


def journal(tmp_path):
    return json.loads((tmp_path / "compressed" / "journal.json").read_text())


def accuracy(model):
    x, t = load_digits(return_X_y=True)
    x, t = np.float32(x[1200:] / 16), t[1200:].astype(np.int32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return float(F.accuracy(model(x), t).array)


def test_a_model_becomes_as_small_as_wanted_within_the_budget(tmp_path):
    result = compress("--budget", "accuracy=-3", "--bytes", "0.2")
    assert result.exit_code == 0, result.output
    assert "behind the trainer" not in result.output
    found = journal(tmp_path)
    assert [each["way"] for each in found["rounds"]] == [0.5, 1.0]
    assert all(each["is_kept"] for each in found["rounds"])
    *_, last = found["rounds"]
    assert last["metric"] >= found["base"] - 0.03
    whole = 4 * (64 * 40 + 40 * 20 + 20 * 10)
    assert sum(last["bytes"].values()) <= 0.2 * whole
    # What the report says is what one process makes of the files.
    folder = tmp_path / "compressed"
    plan = CompressionPlan.load(folder / "plan.json")
    layers = L.Linear(64, 40), F.relu, L.Linear(40, 20), F.relu, L.Linear(20, 10)
    model = plan.prepare(Divisible(*layers))
    chainer.serializers.load_npz(folder / "round_2.npz", model)
    assert accuracy(model) == pytest.approx(last["metric"])
    assert accuracy(apply(model, plan)) == pytest.approx(last["metric"])
    report = (folder / "report.txt").read_text()
    assert report in result.output and "as wanted" in report
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    # The same command prints the report again, and trains nothing.
    (tmp_path / "evaluations").unlink()
    for name in ("report.txt", "report.png", "plan.json"):
        (folder / name).unlink()
    again = compress("--budget", "accuracy=-3", "--bytes", "0.2")
    assert again.output.strip() == report.strip()
    # It writes what a kill behind the last round has left out.
    assert (folder / "report.txt").read_text() == report
    assert (folder / "report.png").exists() and (folder / "plan.json").exists()
    assert not (tmp_path / "evaluations").exists()
    other = compress("--budget", "accuracy=-2", "--bytes", "0.2")
    assert other.exit_code == 1
    assert "budget was 'accuracy=-3', not 'accuracy=-2'" in other.output


def test_chainers_own_updater_and_a_budget_that_nothing_keeps(tmp_path):
    # The dense model is far from trained, so rounds have lower losses.
    better = compress("--budget", "loss=+0", "--layers", "/predictor/2", kind="chainer")
    assert better.exit_code == 0, better.output
    rounds = journal(tmp_path)["rounds"]
    assert [each["is_kept"] for each in rounds] == [True, True]
    assert [*rounds[0]["bytes"]] == ["/predictor/2"]
    assert "the least that the trials have" in better.output
    options = ["--budget", "accuracy=-0", "-o", "other", "--degrees", "0.99"]
    options += ["--methods", "magnitude", "--epochs", "0.1", "--rounds", "1"]
    worse = compress(*options, kind="chainer")
    assert worse.exit_code == 0, worse.output
    assert "nothing was kept within accuracy=-0" in worse.output
    found = json.loads((tmp_path / "other" / "journal.json").read_text())
    # Half way back, and a half of that.
    assert [each["way"] for each in found["rounds"]] == [1.0, 0.5, 0.25]
    assert not any(each["is_kept"] for each in found["rounds"])
    assert not (tmp_path / "other" / "plan.json").exists()


def test_a_killed_session_goes_on(tmp_path):
    options = ["--budget", "accuracy=-10", "--bytes", "0.3"]
    # Evaluations: one by the trainer in each of three trainings, and one behind it; the
    # times of layers; the base of the trials, and three layers with four trials each.
    # Killed in the dense run, in the third trial, and behind the training of a round.
    for last in (1, 8, 22):
        assert compress(*options, last=last).exit_code == 9
        assert int((tmp_path / "evaluations").read_text()) == last
    result = compress(*options)
    assert result.exit_code == 0, result.output
    # Two rounds.
    assert int((tmp_path / "evaluations").read_text()) == 22 + 4
    assert [each["is_kept"] for each in journal(tmp_path)["rounds"]] == [True, True]


WITHOUT = """
import chainer, numpy as np
from chainer import links as L
from chainer.iterators import SerialIterator
from chainer.training import StandardUpdater, Trainer
model = L.Classifier(L.Linear(2, 2))
data = [(np.ones(2, 'f'), np.int32(0))]
updater = StandardUpdater(
    SerialIterator(data, 1), chainer.optimizers.SGD().setup(model))
"""


@pytest.mark.parametrize(
    "text, words",
    [
        ("print('no trainer')", "runs no chainer.training.Trainer: train by one"),
        (f"{WITHOUT}\nTrainer(updater, (1, 'epoch')).run()", "has no evaluator"),
    ],
)
def test_scripts_that_do_not_fit_are_refused(text, words, tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(text)
    result = compress("--budget", "accuracy=-1", script=str(path))
    assert result.exit_code == 1
    assert words in result.output + capfd.readouterr().err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--budget", "accuracy"], "is no budget"),
        (["--budget", "accuracy=-1", "--bytes", "1.5"], "neither a part below 1"),
        ([], "Missing option '--budget'"),
    ],
)
def test_wrong_options_are_refused(options, words):
    result = compress(*options)
    assert result.exit_code in (1, 2) and words in result.output


@pytest.mark.parametrize(
    "options, words",
    [
        (["--budget", "perplexity=+1"], "report no 'perplexity'"),
        (["--budget", "accuracy=-1", "--bytes", "0.01"], "142 bytes and 1.00"),
        (["--budget", "accuracy=-1", "--layers", "/9"], "means no layer"),
        (["--budget", "accuracy=-1", "--methods", "magic"], "must be one of"),
    ],
)
def test_what_the_trials_find_wrong_comes_before_any_round(options, words, capfd):
    result = compress(*options, epochs=1)
    assert result.exit_code == 1
    assert words in result.output + capfd.readouterr().err


def test_channels_go_within_the_time(tmp_path):
    options = ["--budget", "accuracy=-20", "--granularity", "channel", "--time", "0.5"]
    options += ["--methods", "l2", "--rounds", "1"]
    result = compress(*options)
    assert result.exit_code == 0, result.output
    # A round that loses too much is followed by a smaller one.
    found, *_ = journal(tmp_path)["rounds"]
    assert found["goal"] is None and found["time"] == 0.5
    rules = {rule["layers"][0]: rule for rule in found["plan"]}
    # The outputs are classes.
    assert "/4" not in rules
    assert {rule["granularity"] for rule in rules.values()} == {"channel"}
    sizes = {"/0": 4 * 64 * 40, "/2": 4 * 40 * 20, "/4": 4 * 20 * 10}
    for layer, rule in rules.items():
        assert found["bytes"][layer] <= sizes[layer] * (1 - rule["to"]) * 1.01
    # The layer that reads them has become smaller as well.
    assert found["bytes"]["/4"] < sizes["/4"] or "/2" not in rules


def test_time_is_of_channels():
    result = compress("--budget", "accuracy=-1", "--time", "0.5")
    assert result.exit_code == 2 and "needs --granularity channel" in result.output
