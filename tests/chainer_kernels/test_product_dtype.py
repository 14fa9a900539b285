"""Products in bfloat16: who computes them in it, and from when on."""

import os
import subprocess
import sys
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_kernels
from chainer_kernels import bfloat16, product_dtype, switch
from chainer_kernels.bfloat16 import rounded
from chainer_kernels.contributions import Scratch
from chainer_kernels.functions import weight_gradients
from chainer_kernels.providers import amx_products
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16

#: Numbers that bfloat16 does not have, and whose products show it.
X, W = kernels.arrays((5, 7), 0), kernels.arrays((3, 7), 1)
GY = kernels.arrays((5, 3), 2)


def forward():
    x, w = chainer.Variable(X), chainer.Variable(W)
    return x, w, F.linear(x, w)


def gradients(x, w, y):
    y.grad = GY
    y.backward()
    return x.grad, w.grad


def exact(dtype):
    """Returns the output and gradients, for operands rounded to a dtype."""
    x, w, gy = [rounded(a) if dtype == "bfloat16" else a for a in (X, W, GY)]
    x, w, gy = [a.astype("d") for a in (x, w, gy)]
    return x @ w.T, gy @ w, gy.T @ x


def assert_in(dtype, *found):
    for ours, right in zip(found, exact(dtype)[-len(found) :]):
        np.testing.assert_allclose(ours, right, 1e-5, 1e-5)


def test_block_and_everywhere_in_each_thread():
    def seen():
        found = []
        thread = threading.Thread(target=lambda: found.append(product_dtype.here()))
        thread.start()
        thread.join(10)
        return product_dtype.here(), *found

    with chainer_kernels.products("bfloat16"):
        assert seen() == ("bfloat16", "float32")
        with chainer_kernels.products("float32"):
            assert seen() == ("float32", "float32")
        with chainer_kernels.disabled():
            assert switch.products_in_force() == "float32"
        assert switch.products_in_force() == "bfloat16"
    chainer_kernels.set_products("bfloat16")
    try:
        assert seen() == ("bfloat16", "bfloat16")
        with chainer_kernels.products("float32"):
            assert seen() == ("float32", "bfloat16")
    finally:
        chainer_kernels.set_products("float32")
    assert seen() == ("float32", "float32")


@in_bfloat16
def test_backward_computes_as_forward_did():
    with chainer_kernels.products("bfloat16"):
        inside = forward()
    outside = forward()
    assert_in("bfloat16", inside[2].array, *gradients(*inside))
    with chainer_kernels.products("bfloat16"):
        assert_in("float32", outside[2].array, *gradients(*outside))


@in_bfloat16
def test_backward_in_another_thread():
    with chainer_kernels.products("bfloat16"):
        inside = forward()
    found = []
    thread = threading.Thread(target=lambda: found.extend(gradients(*inside)))
    thread.start()
    thread.join(10)
    assert_in("bfloat16", *found)


@in_bfloat16
@pytest.mark.parametrize("function", ["linear", "convolution"])
def test_weight_gradients_that_are_told(function):
    """A pipeline asks the function what to add, and adds it later."""
    x, w = X, chainer.Parameter(W)
    if function == "convolution":
        x, w = X[..., None, None], chainer.Parameter(W[..., None, None])
    with chainer_kernels.products("bfloat16"):
        y = (F.convolution_2d if w.ndim > 2 else F.linear)(x, w)
    tell = getattr(weight_gradients, function)
    told = tell(y.creator, {1: w}, GY.reshape(y.shape))[1]
    out = np.zeros_like(w.array)
    told.write(out)
    assert_in("bfloat16", out.reshape(W.shape))
    told.add(out, Scratch())
    np.testing.assert_allclose(out.reshape(W.shape) / 2, exact("bfloat16")[2], 1e-5)


def test_other_dtypes_are_not_rounded():
    with chainer_kernels.products("bfloat16"):
        y = F.linear(X.astype("d"), W.astype("d")).array
        half = F.convolution_2d(
            X[..., None, None].astype("e"), W[..., None, None].astype("e")
        )
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, X.astype("d") @ W.astype("d").T)
    halves = [a.astype("e").astype("d") for a in (X, W)]
    right = (halves[0] @ halves[1].T).astype("e")
    np.testing.assert_allclose(half.array[..., 0, 0], right, 1e-3, 1e-3)


def test_what_is_refused():
    with pytest.raises(ValueError, match="'float16'. Give 'float32' or 'bfloat16'"):
        chainer_kernels.products("float16")
    with pytest.raises(ValueError, match="Give 'float32'"):
        chainer_kernels.set_products("fp16")
    with chainer_kernels.disabled():
        chainer_kernels.products("float32")
        with pytest.raises(
            RuntimeError, match="only kernels .* chainer_kernels.enable"
        ):
            chainer_kernels.products("bfloat16")


def test_disabling_warns():
    chainer_kernels.set_products("bfloat16")
    try:
        with pytest.warns(RuntimeWarning, match="in float32, although bfloat16 is"):
            chainer_kernels.disable()
    finally:
        chainer_kernels.enable()
        chainer_kernels.set_products("float32")


CODE = """
import warnings
warnings.simplefilter("ignore")
import chainer.functions as F, numpy as np
x, W = np.array([[1.01]], "f"), np.array([[100]], "f")
try:
    print(F.linear(x, W).array.item())
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "value, output",
    [
        ("bfloat16", "100.78125"),
        ("", "101.0"),
        (
            "bf16",
            "CHAINER_KERNELS_PRODUCTS is 'bf16'. It must be 'float32' or 'bfloat16'",
        ),
    ],
)
def test_environment(value, output):
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "CHAINER_KERNELS_PRODUCTS": value,
        },
    )
    assert done.stdout.strip() == output


def test_environment_without_kernels_warns():
    code = "import chainer.functions"
    environment = {"CHAINER_KERNELS_PRODUCTS": "bfloat16", "CHAINER_KERNELS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **environment},
    )
    assert done.stderr.count("Chainer computes all products in float32") == 1


@in_bfloat16
def test_weights_are_rounded_once_in_a_scope(monkeypatch):
    link = L.Linear(64, 300)
    x = kernels.arrays((310, 64), 0)
    sizes = []
    run, right = bfloat16._run, amx_products.right
    monkeypatch.setattr(
        bfloat16, "_run", lambda loop, a, out: (sizes.append(a.size), run(loop, a, out))
    )
    monkeypatch.setattr(
        amx_products, "right", lambda b: (sizes.append(b.size), right(b))[1]
    )
    with chainer_kernels.products("bfloat16"), chainer_kernels.unchanged_weights():
        for _ in range(3):
            y = link(x)
            y.grad = np.ones_like(y.array)
            y.backward()
    assert sizes.count(link.W.size) == 1
