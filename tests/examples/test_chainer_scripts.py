"""Chainer's own scripts give on a pipeline the logs they give by themselves."""

import hashlib
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from tests.support.mpiexec import ROOT, mpiexec

FOLDER = ROOT / "examples" / "chainer_scripts"
# Of examples/mnist/train_mnist.py and examples/cifar/train_cifar.py in Chainer 7.8.1.
ORIGINALS = {
    "train_mnist": "c456622ac652287c469ebdade4d21266c854ba082fda43b6c73043f302f19eec",
    "train_cifar": "0f4624786df9c3a49616ea23b14518530285ced4de7bca944392040f6f910169",
}
# Runs a script with weights that depend on their shapes only, and without dropout: what
# each process draws at random is its own.
DRIVER = """
import runpy, sys, zlib
import chainer, numpy
def fill(self, array):
    rng = numpy.random.RandomState(zlib.crc32(repr(array.shape).encode()))
    array[...] = rng.normal(0, self.scale, array.shape)
chainer.initializers.Normal.__call__ = fill
chainer.functions.dropout = lambda h, *args, **kwargs: h
numpy.random.seed(4)
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rsplit("/", 1)[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def thin(folder):
    """Divides the width of every layer of VGG by 16."""
    path = folder / "models" / "VGG.py"
    width = r"(?<=[( ])(64|128|256|512)(?=[,)])"
    path.write_text(re.sub(width, lambda m: str(int(m[0]) // 16), path.read_text()))


def original(name, folder):
    """Takes the changes of the port back."""
    if shutil.which("patch") is None:
        pytest.skip("needs the program patch")
    shutil.copytree(FOLDER, folder)
    thin(folder)
    diff = (FOLDER / f"{name}.diff").read_text()
    script = folder / f"{name}.py"
    command = ["patch", "--reverse", "--no-backup-if-mismatch", str(script)]
    subprocess.run(command, input=diff, text=True, check=True)
    assert hashlib.sha256(script.read_bytes()).hexdigest() == ORIGINALS[name]
    return script


def ported(name, folder):
    shutil.copytree(FOLDER, folder)
    thin(folder)
    return folder / f"{name}.py"


def make_data(root):
    """Leaves small random data where Chainer keeps its downloads."""
    rng = np.random.RandomState(0)
    mnist, cifar = root / "pfnet/chainer/mnist", root / "pfnet/chainer/cifar"
    for folder in (mnist, cifar):
        folder.mkdir(parents=True)
    for file, n in (("train.npz", 90), ("test.npz", 40)):
        x = rng.randint(0, 256, (n, 784)).astype(np.uint8)
        np.savez(mnist / file, x=x, y=rng.randint(0, 10, n).astype(np.uint8))
    sets = {}
    for file, n in (("train", 30), ("test", 19)):
        sets[f"{file}_x"] = rng.randint(0, 256, (n, 3072)).astype(np.uint8)
        sets[f"{file}_y"] = rng.randint(0, 10, n).astype(np.uint8)
    np.savez(cifar / "cifar-10.npz", **sets)


@pytest.mark.parametrize(
    "name, n_ranks, argv, rtol",
    [
        ("train_mnist", 2, ["--unit", "20", "--batchsize", "20"], 1e-5),
        ("train_cifar", 2, ["--batchsize", "8", "--learnrate", "0.01"], 1e-5),
    ],
)
def test_a_ported_script_gives_the_log_of_the_original(
    name, n_ranks, argv, rtol, tmp_path
):
    make_data(tmp_path / "data")
    logs, outputs = [], []
    for n, script in (
        (1, original(name, tmp_path / "original")),
        (n_ranks, ported(name, tmp_path / "ported")),
    ):
        out = tmp_path / f"out{n}"
        arguments = ["-c", DRIVER, script, "--epoch", "2", "--out", out, *argv]
        env = {"CHAINER_DATASET_ROOT": str(tmp_path / "data")}
        result = mpiexec(n, arguments, timeout=120, env=env)
        assert result.returncode == 0, result.stdout
        logs.append(json.loads((out / "log").read_text()))
        outputs.append(result.stdout)
    serial, divided = logs
    assert len(serial) == len(divided) == (3 if name == "train_mnist" else 2)
    for theirs, ours in zip(serial, divided):
        for key in set(theirs) - {"elapsed_time"}:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=rtol, err_msg=key)
    # One rank prints the table.
    header = "main/loss   validation/main/loss"
    assert [output.count(header) for output in outputs] == [1, 1]


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_port_adds_at_most_15_lines(name):
    lines = (FOLDER / f"{name}.diff").read_text().splitlines()[2:]
    for sign, most in (("+", 15), ("-", 15)):
        assert sum(line.startswith(sign) for line in lines) <= most
