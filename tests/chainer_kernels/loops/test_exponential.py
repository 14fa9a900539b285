"""Exponentials in float32 against NumPy's in float64."""

import numba
import numpy as np
import pytest

from chainer_kernels.loops import exponential

NUMBERS = np.concatenate(
    [
        np.linspace(-104, 88.7, 200_001),
        np.linspace(-1, 1, 100_001),
        np.geomspace(1e-37, 80, 50_001),
        -np.geomspace(1e-37, 80, 50_001),
    ]
).astype("f")
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0, 1e-40, 89, 1e3, -105, -1e3], "f")


def apply(function, x):
    @numba.njit("void(f4[::1], f4[::1])", error_model="numpy")
    def each(x, y):
        for i in range(x.size):
            y[i] = function(x[i])

    y = np.empty_like(x)
    each(x, y)
    return y


@pytest.mark.parametrize(
    "name, right, error",
    [
        ("exp", np.exp, 1e-7),
        ("expm1", np.expm1, 2e-7),
        ("tanh", np.tanh, 2e-7),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 2e-7),
    ],
)
def test_error(name, right, error):
    function = getattr(exponential, name)
    x = NUMBERS[NUMBERS <= 87] if name == "expm1" else NUMBERS
    # The smallest positive float32: what is below 2^-126 is exact to half of it.
    step = 2.0**-149 if name == "exp" else 2.0**-127
    with np.errstate(over="ignore"):
        exact = right(x.astype("d"))
        np.testing.assert_allclose(apply(function, x), exact, error, step)
        special = SPECIAL[SPECIAL < 87] if name == "expm1" else SPECIAL
        y = apply(function, special)
        np.testing.assert_allclose(y, right(special.astype("d")).astype("f"), 2e-7)
    if name in ("tanh", "expm1"):
        np.testing.assert_array_equal(np.signbit(y), np.signbit(special) & (y <= 0))
