"""Kernels in the place of Chainer's methods: when they run, and when they do not."""

import subprocess
import sys

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.activation import relu

import chainer_kernels
from chainer_compat import _finder
from tests.support import kernels

X = np.array([[-1, 2]], "f")


def test_kernel_runs():
    with kernels.called() as names:
        y = F.relu(X).array
    assert names == {"ReLU.forward_cpu"}
    np.testing.assert_array_equal(y, [[0, 2]])


def test_a_module_of_two_names_gets_one_kernel(monkeypatch):
    before = relu.ReLU.forward_cpu
    monkeypatch.setitem(sys.modules, "chainer.another_relu", relu)
    monkeypatch.setitem(sys.modules, "chainer.missing", None)
    _finder.hand_over_loaded("chainer_kernels.installing")
    assert relu.ReLU.forward_cpu is before


def test_modules_that_load_when_they_are_asked_are_not(monkeypatch):
    class Lazy:
        def __getattribute__(self, name):
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy", Lazy())
    _finder.hand_over_loaded("chainer_kernels.installing")


def test_other_dtypes_are_left_to_chainer():
    x = X.astype("d")
    with kernels.called() as names:
        assert F.relu(x).dtype == x.dtype
    assert names == set()


def test_nothing_runs_where_kernels_are_disabled():
    with kernels.called() as names:
        with chainer_kernels.disabled():
            assert not chainer_kernels.is_enabled()
            F.relu(X)
        assert names == set()
        chainer_kernels.disable()
        try:
            F.relu(X)
        finally:
            chainer_kernels.enable()
        assert names == set()
        F.relu(X)
    assert names


def test_subclasses_are_left_to_chainer():
    class Own(relu.ReLU):
        pass

    with kernels.called() as names:
        Own().apply((X,))
    assert names == set()


def test_ideep_is_left_to_chainer():
    with chainer.using_config("use_ideep", "auto"), kernels.called() as names:
        F.relu(X)
    assert names == set()


def test_double_backward():
    x = chainer.Variable(X)
    y = F.relu(x) ** 2
    (gx,) = chainer.grad([y], [x], enable_double_backprop=True)
    (ggx,) = chainer.grad([gx], [x])
    np.testing.assert_array_equal(ggx.array, [[0, 2]])


CASES = {
    "import chainer_kernels, chainer": "True",
    "import chainer, chainer_kernels": "True",
    "import chainer.functions as F; import chainer_kernels": "True",
}


@pytest.mark.slow
@pytest.mark.parametrize("imports", CASES)
def test_order_of_imports(imports):
    code = (
        f"{imports}\n"
        "from chainer.functions.activation.relu import ReLU\n"
        "print('chainer_kernels' in ReLU.forward_cpu.__code__.co_filename,\n"
        "      'numba' in __import__('sys').modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [CASES[imports], "False"]


def test_environment_switches_off():
    code = "import chainer_kernels as k; print(k.is_enabled())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"CHAINER_KERNELS": "0", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"
