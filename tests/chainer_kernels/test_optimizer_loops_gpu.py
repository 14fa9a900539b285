"""The texts of the kernels that CuPy compiles; they are made without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from chainer_kernels import optimizer_loops_gpu as loops
from chainer_kernels import update_rules


@pytest.fixture
def kernels(monkeypatch):
    """The texts of kernels that were called, and the sizes of their arrays."""
    called = []

    def elementwise_kernel(inputs, outputs, body, name):
        def call(gradient, *arguments):
            sizes = [a.size for a in arguments if isinstance(a, np.ndarray)]
            called.append((inputs, outputs, " ".join(body.split()), name, sizes))

        return call

    fake = SimpleNamespace(ElementwiseKernel=elementwise_kernel, empty=np.empty)
    monkeypatch.setattr(loops, "cupy", fake)
    loops._kernel.cache_clear()
    yield called
    loops._kernel.cache_clear()


def update(formula, has_weights, has_half, states, n_numbers):
    """The second of three parameters, of 64 numbers each."""
    ends = 64 * np.arange(1, 4)
    gradients = loops.Gradients(np.zeros(192, np.float16), ends - 64, ends)
    weights = np.zeros(192 * has_weights, np.float32)
    half = np.zeros(192 * has_half, np.float16)
    states = [np.zeros(192, dtype) for dtype in states]
    numbers = [np.float32(1)] * n_numbers
    inverse = np.float32(1)
    loops.update(formula, gradients, (1, 1), inverse, weights, half, states, numbers)


def test_masters_and_float16_weights(kernels):
    update(update_rules.momentum_sgd, True, True, "f", 2)
    body = (
        "W weight = weights;"
        " if (static_cast<float>(float16(weight)) != static_cast<float>(half_)) {"
        " weight = static_cast<float>(half_); }"
        " W gradient = static_cast<W>(scaled) * inverse;"
        " v = momentum * v - lr * gradient; weight += v;"
        " weights = weight; half_ = float16(weight);"
    )
    inputs = "G scaled, W inverse, W lr, W momentum, raw W of_type_w"
    outputs = "W weights, float16 half_, W v"
    name = "mixed_precision_momentum_sgd"
    assert kernels == [(inputs, outputs, body, name, [0, 64, 64, 64])]


def test_weights_that_are_their_own_masters(kernels):
    update(update_rules.sgd, True, False, "", 1)
    body = (
        "W weight = weights; W gradient = static_cast<W>(scaled) * inverse;"
        " weight -= lr * gradient; weights = weight;"
    )
    inputs = "G scaled, W inverse, W lr, raw W of_type_w"
    assert kernels == [
        (inputs, "W weights", body, "mixed_precision_sgd", [0, 64]),
    ]


def test_float16_weights_without_masters(kernels):
    update(update_rules.momentum_sgd16, False, True, "e", 2)
    body = (
        "float weight = static_cast<float>(half_);"
        " W gradient = static_cast<W>(scaled) * inverse;"
        " W total = momentum * static_cast<float>(g) + gradient;"
        " g = float16(min(max(total, -65504.0f), 65504.0f));"
        " weight -= lr * static_cast<float>(g); half_ = float16(weight);"
    )
    inputs = "G scaled, W inverse, W lr, W momentum, raw W of_type_w"
    outputs, name = "float16 half_, float16 g", "mixed_precision_momentum_sgd16"
    assert kernels == [(inputs, outputs, body, name, [0, 64, 64])]
