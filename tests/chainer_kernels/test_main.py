"""``python -m chainer_kernels``."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import chainer_kernels
from chainer_kernels import __main__, catalogue, compiling, providers, speed
from chainer_kernels.functions import gpu_choice
from chainer_kernels.providers import cudnn
from tests.support import kernels


def output(*arguments):
    result = CliRunner().invoke(__main__.main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_kernel_is_listed_once():
    lines = output("--no-speed").splitlines()
    for entry in catalogue.CATALOGUE:
        (line,) = (line for line in lines if entry.label in line.split())
        assert line.split()[-1] == entry.kernel
    (line,) = (line for line in lines if "Convolution2DGradW.forward_cpu" in line)
    assert providers.active().NAME in line
    (line,) = (line for line in lines if "MatMul.forward" in line)
    assert f"{providers.active().NAME}, NumPy for stacks" in line
    (line,) = (line for line in lines if "relu.ReLU.forward_cpu" in line.split())
    assert "Numba" in line


def test_says_who_computes_on_a_gpu(monkeypatch):
    def line(what):
        return next(
            line for line in output("--no-speed").splitlines() if f"{what} " in line
        )

    monkeypatch.setattr(gpu_choice, "has_cudnn", lambda: False)
    assert "Chainer's own" in line("on a GPU")
    assert "Chainer, without cuDNN" in line("Convolution2DGradW.forward_gpu")
    assert "cuDNN" not in line("ConvolutionNDGradW.forward")
    assert providers.active().NAME in line("ConvolutionNDGradW.forward")
    monkeypatch.setattr(gpu_choice, "has_cudnn", lambda: True)
    monkeypatch.setattr(cudnn, "version", lambda: "9.1")
    assert "cuDNN (9.1)" in line("on a GPU")
    assert "  cuDNN  " in line("Convolution2DGradW.forward_gpu")
    assert "; cuDNN on a GPU" in line("ConvolutionNDGradW.forward")


def test_says_why_nothing_is_in_force():
    assert "not in force" not in output("--no-speed")
    chainer_kernels.disable()
    try:
        assert "not in force" in output("--no-speed")
    finally:
        chainer_kernels.enable()


@pytest.mark.parametrize("is_on", [True, False])
def test_speed_of_an_operator(monkeypatch, is_on):
    two = {name: speed._OPERATORS[name] for name in ("ReLU", "linear")}
    monkeypatch.setattr(speed, "_OPERATORS", two)
    monkeypatch.setattr(speed, "_ROUNDS", 1)
    if not is_on:
        chainer_kernels.disable()
    try:
        with kernels.called() as names:
            text = output()
        assert chainer_kernels.is_enabled() == is_on
    finally:
        chainer_kernels.enable()
    assert "ReLU.forward_cpu" in names
    (row,) = (line for line in text.splitlines() if line.split()[:1] == ["ReLU"])
    stock, ours, ratio = map(float, row.split()[1:])
    assert stock > 0 and ours > 0
    assert ratio == pytest.approx(ours / stock, abs=0.02)
    (*_, row) = (line for line in text.splitlines() if line.split()[:1] == ["linear"])
    single, narrow, ratio = map(float, row.split()[1:])
    assert ratio == pytest.approx(narrow / single, abs=0.02)


@pytest.mark.slow
def test_operators_run():
    """All of them, with kernels."""
    with kernels.called() as names:
        for operator, make in speed._OPERATORS.items():
            names.clear()
            make(speed.np.random.RandomState(0))()
            assert names, operator


TRAIN = """
import chainer
import numpy as np
from chainer_kernels import compiling

link = chainer.links.Linear(200, 100)
optimizer = chainer.optimizers.Adam().setup(link)
y = chainer.functions.relu(link(np.ones((4, 200), "f")))
link.cleargrads()
chainer.functions.sum(y).backward()
optimizer.update()
used = [loop for loop in compiling.LOOPS if "compiled" in vars(loop)]
print(*(loop.__name__ for loop in used if not loop.compiled.stats.cache_misses))
assert not any(loop.compiled.stats.cache_misses for loop in used)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_new", [False, pytest.param(True, marks=pytest.mark.matrix)]
)
def test_filled_cache(is_new, tmp_path):
    """A process that trains compiles nothing after ``--compile``.

    The user's own cache, into which tests compile as well, needs little more.
    """
    own = {"CHAINER_KERNELS_CACHE": str(tmp_path)} if is_new else {}

    def run(*arguments):
        result = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    said = run("-m", "chainer_kernels", "--compile")
    assert f"of which {'0' if is_new else ''}" in said and "had been compiled" in said
    assert {"relu", "adam_arrays"} <= {*run("-c", TRAIN).split()}


def test_cache_that_cannot_be_written_to(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHAINER_KERNELS_CACHE", str(tmp_path / "file"))
    compiling.cache_directory.cache_clear()
    text = output("--no-speed")
    compiling.cache_directory.cache_clear()
    assert "kept nowhere" in text
    assert "warning: chainer_kernels compiles its loops at every start" in text


def test_provider_of_a_wrong_name(monkeypatch):
    monkeypatch.setenv("CHAINER_KERNELS_PROVIDER", "mkl")
    providers.active.cache_clear()
    result = CliRunner().invoke(__main__.main, ["--no-speed"])
    providers.active.cache_clear()
    assert result.exit_code == 1
    assert "Error: CHAINER_KERNELS_PROVIDER is 'mkl'" in result.output
