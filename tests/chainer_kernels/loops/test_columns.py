"""ReLU of some columns of a matrix, bit for bit what NumPy computes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.loops import columns

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45], "f")


@given(
    n=st.integers(0, 5),
    width=st.integers(0, 70),
    start=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_columns(n, width, start, seed):
    random = np.random.RandomState(seed)

    def draw(*shape):
        values = random.randn(*shape).astype("f")
        return np.where(random.rand(*shape) < 0.3, random.choice(SPECIAL), values)

    z, b = draw(n, width), draw(width)
    y, gy = (draw(n, start + width + 3) for _ in range(2))
    wanted = y.copy()
    with np.errstate(invalid="ignore"):
        added = z + b
        wanted[:, start : start + width] = np.where(added <= 0, np.float32(0), added)
    columns.add_relu(z, b, y, start)
    np.testing.assert_array_equal(y, wanted)
    gz, part = np.empty_like(z), slice(start, start + width)
    columns.relu_grad(y, gy, gz, start)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(gz, gy[:, part] * (y[:, part] > 0))
