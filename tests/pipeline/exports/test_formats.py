"""Models for other libraries, read by them and compared."""

import functools
import re
import resource

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from divisible import Divisible, carry_state
from pipeline import Pipeline, SnapshotError, import_npz, save_snapshot
from pipeline.command_line.main import main
from pipeline.exports.formats import FORMATS, export
from pipeline.snapshots.arrays import opened

SHAPE = (2, 8, 8)


def build(last=F.log_softmax):
    return Divisible(
        L.Convolution2D(2, 4, 3, pad=1),
        L.BatchNormalization(4),
        F.relu,
        functools.partial(F.max_pooling_2d, ksize=2),
        L.Convolution2D(4, 6, 3, stride=2, nobias=True),
        functools.partial(F.leaky_relu, slope=0.1),
        F.dropout,
        L.Linear(6, 5),
        last,
    )


@pytest.fixture
def trained(tmp_path):
    np.random.seed(0)
    model = build(F.tanh)
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, *SHAPE)).astype(np.float32)
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2) as pipe:
        for _ in range(3):
            pipe.step(x, np.arange(8, dtype=np.int32) % 5)
            optimizer.update()
        save_snapshot(tmp_path / "snapshot", pipe, optimizer)
    return model


def needs(name):
    for package in FORMATS[name].packages:
        pytest.importorskip(package)


X = np.random.default_rng(1).normal(size=(3, *SHAPE)).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_what_was_written_is_the_model(name, trained, tmp_path):
    needs(name)
    output = tmp_path / f"model.{FORMATS[name].ending}"
    said = export(tmp_path / "snapshot", output, name, build(F.tanh), X)
    if FORMATS[name].needs_model:
        assert re.match(
            "outputs for 3, 1 and 6 samples, which differ by .*e-0[678]", said
        )
    else:
        assert re.match(r"\d+ arrays, equal to the snapshot's", said)
    assert output.exists()


def save(model, x, folder):
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    functions = {"lossfun": lambda y, t: F.sum(y), "accfun": None}
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, **functions) as pipe:
        pipe.step(x, np.zeros(len(x), np.int32))
        optimizer.update()
        pipe.reset_states()
        save_snapshot(folder, pipe, optimizer)
    return model


@pytest.mark.filterwarnings("ignore")
def test_other_numbers_of_samples_are_compared(tmp_path):
    """The half of four samples is that of five, but not that of seven."""
    needs("onnx")
    x = np.ones((4, 3), np.float32)
    model = save(
        Divisible(L.Linear(3, 2), lambda y: y[: len(y) // 2]), x, tmp_path / "s"
    )
    with pytest.raises(ValueError, match="1 sample .*shape|7 samples have the shape"):
        export(tmp_path / "s", tmp_path / "m.onnx", "onnx", model, x)
    assert not (tmp_path / "m.onnx").exists()


def test_a_state_without_a_value(tmp_path):
    """What is None in Chainer's own file is so in that of an export."""
    model = Divisible(carry_state(L.LSTM(3, 2)), L.Linear(2, 2))
    save(model, np.ones((4, 3), np.float32), tmp_path / "s")
    assert export(tmp_path / "s", tmp_path / "m.npz").endswith(
        "equal to the snapshot's"
    )
    chainer.serializers.save_npz(tmp_path / "chainer.npz", model)
    other = Divisible(carry_state(L.LSTM(3, 2)), L.Linear(2, 2))
    chainer.serializers.load_npz(tmp_path / "m.npz", other)
    with opened(tmp_path / "m.npz") as mine, opened(tmp_path / "chainer.npz") as theirs:
        assert {*mine} == {*theirs}
        for key in theirs:
            np.testing.assert_array_equal(mine[key], theirs[key])
    needs("safetensors")
    with pytest.raises(ValueError, match="has no value, which safetensors cannot hold"):
        export(tmp_path / "s", tmp_path / "m.safetensors", "safetensors")


@pytest.mark.parametrize("name", ["npz", "safetensors"])
def test_a_model_that_diverged(name, tmp_path):
    needs(name)
    model = Divisible(L.Linear(3, 2))
    model[0].W.array[0] = np.nan
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=1) as pipe:
        save_snapshot(tmp_path / "s", pipe, pipe.setup(chainer.optimizers.SGD()))
    said = export(tmp_path / "s", tmp_path / "m", name)
    assert said == "2 arrays, equal to the snapshot's"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_is_said(name, trained, tmp_path, monkeypatch):
    """The file that was there stays, and no other one does."""
    needs(name)
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "model"
    output.write_text("old")
    form = FORMATS[name]

    def write(source, path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            return form.write(source, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setitem(FORMATS, name, form._replace(write=write))
    words = rf"cannot write {output}: .*; [0-9,]+ bytes are free there, and the arrays"
    with pytest.raises(SnapshotError, match=words):
        export(tmp_path / "snapshot", output, name, build(F.tanh), X)
    assert [*folder.iterdir()] == [output]
    assert output.read_text() == "old"


def test_safetensors_have_the_keys_of_npz(trained, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    export(tmp_path / "snapshot", tmp_path / "model.safetensors", "safetensors")
    export(tmp_path / "snapshot", tmp_path / "model.npz")
    found = safetensors.load_file(tmp_path / "model.safetensors")
    with np.load(tmp_path / "model.npz") as arrays:
        assert {*found} == {*arrays}
    np.testing.assert_array_equal(found["0/W"], trained[0].W.array)
    np.testing.assert_array_equal(found["1/avg_var"], trained[1].avg_var)
    again = build(F.tanh)
    import_npz(tmp_path / "model.npz", again)
    np.testing.assert_array_equal(again[7].W.array, trained[7].W.array)


def test_a_state_dict_loads_into_torch(trained, tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    said = export(tmp_path / "snapshot", path, "torch", build(F.tanh), X)
    state = torch.load(path, weights_only=True)
    np.testing.assert_array_equal(state["4.weight"].numpy(), trained[4].W.array)
    assert "(flatten_7): Flatten" in said
    # As somebody would write it who reads what was printed.
    nn = torch.nn
    module = nn.Sequential()
    for name, each in {
        "0": nn.Conv2d(2, 4, 3, padding=1),
        "1": nn.BatchNorm2d(4, eps=2e-5),
        "2": nn.ReLU(),
        "3": nn.MaxPool2d(2, ceil_mode=True),
        "4": nn.Conv2d(4, 6, 3, stride=2, bias=False),
        "5": nn.LeakyReLU(0.1),
        "6": nn.Dropout(),
        "flatten_7": nn.Flatten(),
        "7": nn.Linear(6, 5),
        "8": nn.Tanh(),
    }.items():
        module.add_module(name, each)
    module.load_state_dict(state)
    module.eval()
    with torch.no_grad(), chainer.using_config("train", False):
        expected = trained(X).array
        np.testing.assert_allclose(module(torch.from_numpy(X)), expected, atol=1e-5)


def test_layers_without_a_module_are_listed(trained, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    model = build(lambda y: F.tanh(y))
    with pytest.raises(
        ValueError, match="PyTorch has no module for layer 8, <lambda>: "
    ):
        export(tmp_path / "snapshot", path, "torch", model, X)
    assert not path.exists()


def test_a_model_that_computes_otherwise_is_refused(trained, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from pipeline.exports import torch_modules

    monkeypatch.setitem(torch_modules._FUNCTIONS, "relu", torch_modules.nn.Sigmoid)
    with pytest.raises(ValueError, match="for 3 samples differ from the model's by"):
        export(tmp_path / "snapshot", tmp_path / "m.pt", "torch", build(F.tanh), X)
    assert not (tmp_path / "m.pt").exists()


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"to": "keras"}, ValueError, "no format 'keras': choose of npz, safetensors"),
        ({"to": "onnx"}, ValueError, "onnx needs the model and the shape of its input"),
    ],
)
def test_wrong_arguments_are_refused(options, error, words, trained, tmp_path):
    with pytest.raises(error, match=words):
        export(tmp_path / "snapshot", tmp_path / "out", **options)


def test_of_another_model_the_snapshot_is_named(trained, tmp_path):
    pytest.importorskip("onnx")
    other = Divisible(L.Linear(3, 4))
    with pytest.raises(SnapshotError) as caught:
        export(tmp_path / "snapshot", tmp_path / "out", "onnx", other, X)
    assert str(caught.value).startswith(f"{tmp_path / 'snapshot'}: 0/W was saved with")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(trained, tmp_path, monkeypatch):
    form = FORMATS["safetensors"]._replace(packages=("no_such_package",))
    monkeypatch.setitem(FORMATS, "safetensors", form)
    with pytest.raises(ImportError, match=r"pip install 'divisible\[safetensors\]'"):
        export(tmp_path / "snapshot", tmp_path / "out", "safetensors")


def test_what_an_installed_package_lacks_is_told(trained, tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import its_own_library")
    monkeypatch.syspath_prepend(tmp_path)
    form = FORMATS["safetensors"]._replace(packages=("half_installed",))
    monkeypatch.setitem(FORMATS, "safetensors", form)
    with pytest.raises(ImportError, match="half_installed, but .*'its_own_library'"):
        export(tmp_path / "snapshot", tmp_path / "out", "safetensors")


def test_the_command_exports(trained, tmp_path):
    (tmp_path / "net.py").write_text(
        "from tests.pipeline.exports.test_formats import build, F\n"
        "def net():\n    return build(F.tanh)\n"
    )
    output = tmp_path / "model.onnx"
    argv = ["export", tmp_path / "snapshot", "--to", "onnx", "-o", output]
    done = CliRunner().invoke(main, [*map(str, argv)])
    assert done.exit_code == 2 and "needs --model and --input" in done.output
    argv += ["--model", f"{tmp_path}/net.py:net", "--input", "2x8x8"]
    done = CliRunner().invoke(main, [*map(str, argv)])
    assert done.exit_code == 0, done.output
    assert "outputs for 4, 1 and 7 samples, which differ by" in done.output
    assert output.stat().st_size > 1000
