"""The examples run as a user would run them."""

import importlib.metadata
import json
import re
import runpy
import sys
import tempfile

import chainer
import numpy as np
import pytest

from divisible import Machine, Plan
from divisible.planning.conditions import Conditions
from divisible.schedules import gpipe
from divisible.schedules.timeline import Timeline
from examples.train import data
from tests.support.matrix import matrix
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

TRAIN = "examples/train/train.py"
SYNTHETIC = ["--dataset", "synthetic", "--samples", "20", "--shape", "1,8,8"]
QUICK = [*SYNTHETIC, "--epoch", "1"]


def run(n, argv, **kwargs):
    result = mpiexec(n, argv, has_project=True, **kwargs)
    assert result.returncode == 0, result.stdout
    return result.stdout


def refused(n, argv, message, **kwargs):
    """Runs what must be refused: soon, on all ranks, in words, once."""
    with tempfile.TemporaryDirectory() as out:
        result = mpiexec(n, [TRAIN, "--out", out, *argv], timeout=10, **kwargs)
    assert result.returncode != 0, result.stdout
    assert result.stdout.count(message) == 1, result.stdout
    assert "Traceback" not in result.stdout


def test_train_learns_digits(tmp_path):
    output = run(2, [TRAIN, "--epoch", "4", "--out", tmp_path])
    assert "Warning" not in output
    (accuracy,) = re.findall(r"^test accuracy ([\d.]+)%$", output, re.MULTILINE)
    # The last digits depend on the libraries; all 15 epochs come to more than 95 %.
    assert float(accuracy) >= 90
    assert len(re.findall(r"^ +\d+ ", output, re.MULTILINE)) == 4
    log = json.loads((tmp_path / "log").read_text())
    assert [entry["epoch"] for entry in log] == [1, 2, 3, 4]
    assert log[-1]["iteration"] == 4 * 23
    assert f"{log[-1]['validation/main/accuracy']:.2%}" == f"{accuracy}%"
    assert log[-1]["main/loss"] < log[0]["main/loss"]
    assert (Timeline.load(tmp_path / "timeline.json").updating > 0).all()


def test_train_cuts_by_time(tmp_path):
    output = run(2, [TRAIN, *QUICK, "--cuts", "auto", "--out", tmp_path])
    (cuts,) = re.findall(r"13 layers cut at \[0, (\d+), 13\]", output)
    assert 1 <= int(cuts) <= 12


def test_train_runs_a_plan(tmp_path):
    made_for = Conditions(Machine(2, speeds=[1, 0.5]), batch=5)
    plan = Plan([0, 3, 6, 9, 13], 2, "interleaved", "always", 1, 2, conditions=made_for)
    plan.save(tmp_path / "plan.json")
    argv = [*QUICK, "--plan", tmp_path / "plan.json", "--out", tmp_path]
    output = run(2, [TRAIN, *argv])
    assert "cut at [0, 3, 6, 9, 13], interleaved schedule" in output
    assert "is for a minibatch of 5 samples on 2 ranks, speeds 1, 0.5" in output
    log = json.loads((tmp_path / "log").read_text())
    assert log[-1]["iteration"] == -(-20 // 5)
    refused(3, argv, "for 2 ranks, but there are 3")
    refused(2, [*argv, "--model", "mlp"], "for a model of 13 layers, but MLP has 7")

    # The minibatches of one pipeline, shared by two.
    Plan([0, 6, 13], 2, "1f1b", replicas=2).save(tmp_path / "plan.json")
    run(4, [TRAIN, *argv, "--batchsize", "5"])
    (entry,) = json.loads((tmp_path / "log").read_text())
    np.testing.assert_allclose(entry["main/loss"], log[-1]["main/loss"], rtol=1e-5)


@pytest.mark.parametrize(
    "model",
    [["cnn"], pytest.param(["vgg16", "--size", "32"], marks=pytest.mark.matrix)],
)
def test_train_plans_by_itself(tmp_path, model):
    """And goes on by the same plan, which it finds beside the snapshots."""
    argv = [*QUICK, "--model", *model, "--plan", "auto", "--out", tmp_path]
    argv += ["--snapshots", "1", "--resume", "auto"]
    output = run(2, [TRAIN, *argv])
    first = next(re.finditer("^plan='auto': rank 0 measured", output, re.MULTILINE))
    chosen, because, saved = output[first.start() :].splitlines()[1:4]
    assert chosen.startswith("chosen: ") and because.startswith("because one rank")
    assert (
        saved == f"saved as {tmp_path / 'plan.json'}, from which a resumed run takes it"
    )
    output = run(2, [TRAIN, *argv, "--epoch", "2"])
    path = tmp_path / "plan.json"
    assert f"plan='auto': as in {path}: " in output and "measured" not in output
    assert "after 1 epochs" in output


def test_what_one_rank_alone_finds_wrong_ends_all(tmp_path):
    root = {"CHAINER_DATASET_ROOT": str(tmp_path)}
    nobody = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    # Rank 0 downloads.
    refused(2, ["--dataset", "mnist"], "Connection refused", env={**root, **nobody})

    Plan([0, 6, 13], 2).save(tmp_path / "plan.json")
    argv = [*QUICK, "--plan", tmp_path / "plan.json", "--out", tmp_path]
    # On the host of rank 1 there is no such file.
    other = [TRAIN, *QUICK, "--plan", tmp_path / "missing.json", "--out", tmp_path]
    message = "No such file or directory: "
    refused(1, [*argv, ":", "-n", "1", sys.executable, *other], message)


@pytest.mark.matrix
def test_train_in_float16(tmp_path):
    """With two stages on each rank, which one optimizer updates together.

    Messages are in 8 bits.
    """
    argv = [*QUICK, "--float16", "--schedule", "interleaved", "--out", tmp_path]
    argv += ["--message-dtype", "int8,e4m3"]
    assert "Warning" not in run(2, [TRAIN, *argv])
    (entry,) = json.loads((tmp_path / "log").read_text())
    assert 0 < entry["main/loss"] < 10


def test_train_with_narrow_products_and_messages(tmp_path):
    argv = [*QUICK, "--products", "bfloat16", "--message-dtype", "int8"]
    output = run(2, [TRAIN, *argv, "--out", tmp_path])
    assert "test accuracy" in output
    (narrow,) = json.loads((tmp_path / "log").read_text())
    run(1, [TRAIN, *QUICK, "--out", tmp_path])
    (whole,) = json.loads((tmp_path / "log").read_text())
    assert narrow["main/loss"] != whole["main/loss"]
    np.testing.assert_allclose(narrow["main/loss"], whole["main/loss"], rtol=0.1)


@pytest.mark.matrix
def test_train_goes_on_after_steps_that_were_skipped(tmp_path):
    """They count, and their loss, which is not a number, is part of the snapshots."""
    argv = [*SYNTHETIC, "--float16", "--optimizer", "sgd", "--learning-rate", "1e6"]
    argv += ["--snapshots", "1", "--resume", "auto", "--out", tmp_path]
    run(2, [TRAIN, *argv, "--epoch", "2"])
    output = run(2, [TRAIN, *argv, "--epoch", "3"])
    assert "snapshot_epoch_2, after 2 epochs" in output
    log = json.loads((tmp_path / "log").read_text())
    assert np.isnan([entry["main/loss"] for entry in log]).any()
    assert [entry["iteration"] for entry in log] == [1, 2, 3]


def test_train_gives_the_same_on_any_number_of_ranks(tmp_path):
    logs, mine = [], tmp_path / "mine.txt"
    mine.write_text(str(gpipe(3, 3)))
    for n, more in ((1, []), (3, ["--cuts", "1,9", "--schedule", mine])):
        # 16 samples in minibatches of 7, 7 and 2.
        argv = [*QUICK, "--batchsize", "7", "--microbatches", "3", *more]
        run(n, [TRAIN, *argv, "--out", tmp_path])
        logs.append(json.loads((tmp_path / "log").read_text())[0])
    for name in ("main/loss", "validation/main/loss", "validation/main/accuracy"):
        np.testing.assert_allclose(logs[0][name], logs[1][name], rtol=1e-5)


def test_train_resumes_on_other_ranks(tmp_path):
    def log(n, epochs, out, *more):
        argv = [*SYNTHETIC, "--model", "mlp", "--epoch", epochs, "--out", out, *more]
        output = run(n, [TRAIN, *argv])
        entries = json.loads((out / "log").read_text())
        seconds = [entry["elapsed_time"] for entry in entries]
        assert seconds == sorted(seconds)
        assert f", after {seconds[-1]:.0f} s" in output
        return output, [entry["main/loss"] for entry in entries]

    _, expected = log(2, 3, tmp_path / "undisturbed")
    resumable = ["--snapshots", "1", "--resume", "auto"]
    log(2, 2, tmp_path / "disturbed", *resumable)
    output, actual = log(1, 3, tmp_path / "disturbed", *resumable)
    assert "snapshot_epoch_2, after 2 epochs" in output
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    # A batch system that starts the job once more must not take it for a failure.
    argv = [*SYNTHETIC, "--model", "mlp", "--epoch", "3", *resumable]
    output = run(2, [TRAIN, *argv, "--out", tmp_path / "disturbed"])
    assert output.count("nothing is left to do") == 1
    assert len(json.loads((tmp_path / "disturbed" / "log").read_text())) == 3
    refused(2, [*SYNTHETIC, "--resume", tmp_path / "none"], "none does not exist here")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "argv",
    [
        ["--model", "mlp", "--layers", "32", "--units", "16", *QUICK],
        ["--model", "vgg16", *QUICK],
        [
            *("--model", "resnet50", "--cut-inside-blocks", "--recompute", "always"),
            *(*QUICK, "--samples", "10"),
        ],
    ],
    ids=lambda argv: "-".join(argv[1:3]),
)
def test_train_runs_every_model(argv, tmp_path):
    output = run(2, [TRAIN, *argv, "--out", tmp_path], timeout=120)
    assert "Warning" not in output
    assert "test accuracy" in output


def write_data_set(name, root):
    """Writes 12 and 5 images where Chainer keeps those that it downloads."""
    folder = root / "pfnet" / "chainer" / name.replace("cifar10", "cifar")
    folder.mkdir(parents=True)
    rng = np.random.RandomState(0)
    if name == "mnist":
        for file, n in (("train.npz", 12), ("test.npz", 5)):
            x = rng.randint(0, 256, (n, 784)).astype(np.uint8)
            np.savez(folder / file, x=x, y=np.arange(n, dtype=np.uint8) % 10)
    else:
        sets = {}
        for file, n in (("train", 12), ("test", 5)):
            sets[f"{file}_x"] = rng.randint(0, 256, (n, 3072)).astype(np.uint8)
            sets[f"{file}_y"] = np.arange(n, dtype=np.uint8) % 10
        np.savez(folder / "cifar-10.npz", **sets)


@pytest.mark.parametrize(
    "name, shape", [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_chainers_data_sets_are_read(name, shape, tmp_path, monkeypatch):
    write_data_set(name, tmp_path)
    monkeypatch.setattr(chainer.dataset.download, "_dataset_root", str(tmp_path))
    train, test = data.load(name)
    assert train.x.shape == (12, *shape) and test.x.shape == (5, *shape)
    assert train.t.tolist() == [*range(10), 0, 1]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "n, name, shape", [(2, "mnist", "(1, 28, 28)"), (1, "cifar10", "(3,")]
)
def test_train_reads_chainers_data_sets(n, name, shape, tmp_path):
    write_data_set(name, tmp_path)
    argv = [TRAIN, "--dataset", name, "--epoch", "1", "--out", tmp_path]
    env = {"CHAINER_DATASET_ROOT": str(tmp_path)}
    output = run(n, argv, env=env)
    assert f"cnn on {name}: 12 images of {shape}" in output


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--cuts", "a"], "argument --cuts: invalid cuts value: 'a'"),
        (["--cuts", "99"], "cuts must grow"),
        (["--batchsize", "0"], "--batchsize must be 1 at least, not 0"),
        (["--seed", "-1"], "--seed must be from 0 to 2**32 - 1, not -1"),
        (["--optimizer", "adam"], "--optimizer needs a --learning-rate"),
        (["--shape", "1,64,64", "--model", "vgg16"], "cannot be enlarged"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_train_refuses_bad_arguments(argv, message, tmp_path, monkeypatch, capsys):
    """In this process, which is one rank."""
    folder = ROOT / "examples" / "train"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "argv", [TRAIN, "--out", str(tmp_path), *QUICK, *argv])
    before = {*sys.modules}
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "train.py"), run_name="__main__")
    finally:
        # Other scripts have modules of the same names.
        for name in {*sys.modules} - before:
            file = getattr(sys.modules[name], "__file__", None)
            if str(file).startswith(str(folder)):
                del sys.modules[name]
    assert ended.value.code == 2
    assert capsys.readouterr().err.count(message) == 1


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--model", "mlp", "--layers", "1"], "1 layers cannot be cut into 2"),
        (["--cuts", "3,5"], "--cuts makes 3 stages, but 1f1b on 2 ranks has 2"),
        (["--out", "/dev/null/result"], "error: [Errno 20] Not a directory"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_train_refuses_what_ranks_cannot_do(argv, message):
    refused(2, [*QUICK, *argv], message)


def test_train_says_what_to_install(tmp_path):
    # An entry of None makes Python take the module as not installed.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['sklearn'] = None"
    )
    refused(
        2,
        [],
        "needs scikit-learn: pip install 'divisible[examples]'",
        env={"PYTHONPATH": f"{tmp_path}:."},
    )


def is_installed():
    """Whether chainer_compat's start-up hook is, without which Chainer warns."""
    try:
        importlib.metadata.distribution("divisible")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("n", [2, *matrix(1, 4)])
def test_paper_loop_equals_serial_training(n):
    output = run(n, ["examples/paper_loop/train.py"])
    if is_installed():
        assert "Warning" not in output
    (difference,) = re.findall(r"serial training: (\S+)$", output, re.MULTILINE)
    assert float(difference) < 1e-6
    assert output.count("step") == 5


def test_the_first_example_learns_digits():
    accuracies = []
    for n in (1, 2):
        output = run(n, ["examples/first/train.py"])
        assert len(output.splitlines()) == 5, output
        accuracies.append(re.findall(r"accuracy ([\d.]+)%$", output, re.MULTILINE))
    serial, divided = np.array(accuracies, float)
    assert serial[-1] > 95
    # A sample on the edge may fall to the other side.
    np.testing.assert_allclose(divided, serial, atol=0.5)


def test_loss_curves_agree_and_are_drawn(tmp_path):
    argv = ["--units", "32", "--steps", "12", "--dtype", "float64", "--out", tmp_path]
    output = run(2, ["examples/loss_curves/train.py", *argv])
    (difference,) = re.findall(r"pipeline to serial: (\S+)$", output, re.MULTILINE)
    assert float(difference) < 1e-12
    assert (tmp_path / "loss_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Warning" not in output


# Less of everything, but two epochs.
WORDS = ["--words", "60", "--units", "8", "--epoch", "2", "--layers", "2"]
SHORT = {
    "unet": ["unet", "--samples", "48", "--width", "4", "--epoch", "2"],
    "autoencoder": [
        *("autoencoder", "--batchsize", "128", "--epoch", "2", "--every", "1")
    ],
    "language_model": ["language_model", *WORDS, "--batchsize", "256"],
    "lstm": ["language_model", *WORDS, "--batchsize", "128", "--lstm"],
}


def figures(output):
    """Returns the numbers of the table, speed left out, and those of the last line."""
    # Chainer's PrintReport clears what a progress bar may have left.
    rows = re.findall(r"^(?:\x1b\[J)?\d+ .*$", output, re.MULTILINE)
    last = re.findall(r"[\d.]*\d", output.strip().splitlines()[-1])
    return np.array([row.split()[1:-1] for row in rows], float), np.array(last, float)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("unet", marks=pytest.mark.matrix),
        pytest.param("autoencoder", marks=pytest.mark.matrix),
        "language_model",
        pytest.param("lstm", marks=pytest.mark.matrix),
    ],
)
def test_examples_learn_the_same_on_any_number_of_ranks(name, tmp_path):
    folder, *options = SHORT[name]
    argv = [f"examples/{folder}/train.py", *options, "--out", tmp_path]
    table, last = figures(run(1, argv))
    assert len(table) == 2
    # The losses, of training and of test.
    assert (table[1, :2] < table[0, :2]).all()
    output = run(3, [*argv, "--recompute", "except_last", "--schedule", "zb_h1"])
    assert "Warning" not in output
    for actual, expected in zip(figures(output), (table, last)):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", matrix("language_model", "lstm"))
def test_the_language_model_plans_by_itself(name, tmp_path):
    """Its tied weights, and the state that an LSTM carries, may be cut anywhere."""
    folder, *options = SHORT[name]
    argv = [f"examples/{folder}/train.py", *options, "--layers", "1"]
    argv += ["--plan", "auto", "--out", tmp_path]
    output = run(2, argv)
    assert "plan='auto': rank 0 measured" in output
    assert f"saved as {tmp_path / 'plan.json'}" in output
    table, _ = figures(output)
    assert (table[1, :2] < table[0, :2]).all()
    output = run(2, [*argv, "--epoch", "1"])
    assert f"plan='auto': as in {tmp_path / 'plan.json'}" in output


@pytest.mark.parametrize(
    "options",
    [pytest.param([], marks=pytest.mark.matrix), ["--channels", "0.5"]],
    ids=["weights", "channels"],
)
def test_a_model_becomes_smaller(options, tmp_path):
    script = "examples/smaller_model/train.py"
    output = run(2, [script, "--epoch", "4", "--out", tmp_path, *options])
    sizes = re.findall(r"(\d+) bytes, test accuracy ([\d.]+)%", output)
    (whole,) = re.findall(r"keeps all its weights has (\d+) bytes", output)
    (trained, accuracy), (small, same) = sizes
    # Files are smaller, and nothing else has changed.
    assert int(small) < int(whole) / 2 and int(small) < int(trained) / 2
    assert accuracy == same
    assert float(accuracy) > 85
    assert (tmp_path / "course.png").stat().st_size > 1000
