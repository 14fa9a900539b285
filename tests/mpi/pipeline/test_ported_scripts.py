"""Scripts that ``divisible port`` rewrites train on two ranks as they did before."""

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main
from tests.support.chainer_scripts import (
    CHAINER_SRC,
    assert_logs_equal,
    make_mnist,
    needs_chainer,
    run_script,
)
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

SCRIPTS = ROOT / "tests" / "pipeline" / "porting" / "scripts"
#: Scripts whose trainers write a log, and those that print what they compute.
TRAINERS = (
    "train_mnist",
    "train_cnn",
    "train_chainermn",
    "train_parallel",
    "train_words",
    "train_autoencoder",
)
LOOPS = "loop_update", "loop_custom"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Where the outputs of the old scripts are, and those of the new ones."""
    folder = tmp_path_factory.mktemp("scripts")
    make_mnist(folder / "data", 90, 50)
    for path in SCRIPTS.glob("*.py"):
        shutil.copy(path, folder)
    for name in (*TRAINERS, *LOOPS):
        result = CliRunner().invoke(main, ["port", str(folder / f"{name}.py")])
        assert result.exit_code == 0, result.output
    # ChainerMN's optimizer does not update in the first minibatch.
    path = folder / "train_chainermn.py"
    wrapped = r"chainermn.create_multi_node_optimizer\(\s*(.*?), comm\)"
    text = re.sub(wrapped, r"\1", path.read_text(), flags=re.DOTALL)
    path.write_text(text)
    env = {
        "CHAINER_DATASET_ROOT": str(folder / "data"),
        "PYTHONPATH": str(ROOT),
    }
    for n, out, end in ((1, "before", ""), (2, "after", "_pipeline")):
        scripts = [folder / f"{name}{end}.py" for name in (*TRAINERS, *LOOPS)]
        argv = ["-m", "tests.support.script_runs", folder / out, *scripts]
        result = mpiexec(n, argv, timeout=120, env=env)
        assert result.stdout.count("all done") == n, result.stdout
    return folder / "before", folder / "after"


def numbers(text):
    return [float(each) for each in re.findall(r"\d+\.\d+(?:e-?\d+)?", text)]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_ported_script_gives_the_log_of_the_old_one(name, runs):
    before, after = runs
    old = json.loads((before / name / "log").read_text())
    new = json.loads((after / f"{name}_pipeline" / "log").read_text())
    assert len(old) == len(new) >= 2
    for entry, ours in zip(old, new):
        keys = [key for key in entry if not re.search("elapsed|predictor/", key)]
        if name == "train_parallel":
            # The updater reports the loss of one half of each minibatch.
            keys = [key for key in keys if key.startswith("validation/")]
        assert any("loss" in key for key in keys)
        for key in keys:
            np.testing.assert_allclose(ours[key], entry[key], 1e-4, err_msg=key)
    assert old[0] != old[1]


@pytest.mark.parametrize("name", LOOPS)
def test_a_ported_loop_prints_what_the_old_one_did(name, runs):
    before, after = runs
    old = (before / f"{name}.0.txt").read_text()
    new = (after / f"{name}_pipeline.0.txt").read_text()
    assert len(numbers(old)) >= 6
    np.testing.assert_allclose(numbers(new), numbers(old), 1e-4)
    assert (after / f"{name}_pipeline.1.txt").read_text() == ""


def test_what_is_printed_at_the_end_is_the_same(runs):
    before, after = runs
    (old,) = numbers((before / "train_autoencoder.0.txt").read_text())
    (new,) = numbers((after / "train_autoencoder_pipeline.0.txt").read_text())
    assert new == pytest.approx(old, rel=1e-4)


@pytest.mark.parametrize("name", ["train_mnist", "loop_update"])
def test_the_saved_model_has_the_weights_and_names_of_the_old_one(name, runs):
    before, after = runs
    old = np.load(before / name / "mlp.model")
    new = np.load(after / f"{name}_pipeline" / "mlp.model")
    assert sorted(old) == sorted(new)
    for key in old:
        np.testing.assert_allclose(new[key], old[key], rtol=1e-3, atol=1e-5)


@needs_chainer
def test_chainers_own_scripts_are_ported_by_the_command_alone(tmp_path):
    source = f"{CHAINER_SRC}/examples/mnist"
    folder = shutil.copytree(source, tmp_path / "mnist")
    make_mnist(tmp_path / "data")
    options = ["--epoch", "2", "--batchsize", "20", "--unit", "20"]
    outputs = {}
    for name in ("train_mnist", "train_mnist_custom_loop"):
        result = CliRunner().invoke(main, ["port", str(folder / f"{name}.py")])
        assert result.exit_code == 0, result.output
        for n, end in ((1, ""), (2, "_pipeline")):
            script, out = folder / f"{name}{end}.py", tmp_path / f"{name}{end}"
            arguments = [*options, "--out", out]
            # The scripts set no seed, and a port sets this one.
            seed, data = "numpy.random.seed(0)", tmp_path / "data"
            outputs[name + end] = run_script(n, script, arguments, data, before=seed)
    logs = [
        json.loads((tmp_path / f"train_mnist{end}" / "log").read_text())
        for end in ("_pipeline", "")
    ]
    assert_logs_equal(*logs)
    old, new = (
        numbers(outputs[f"train_mnist_custom_loop{e}"]) for e in ("", "_pipeline")
    )
    assert len(old) == 8
    np.testing.assert_allclose(new, old, 1e-5)
