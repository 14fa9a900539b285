"""Products of parts of matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.sgemm import sgemm

WAYS = {
    "rows": lambda a: np.ascontiguousarray(a),
    "columns": lambda a: np.asfortranarray(a),
    "part of rows": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    "part of columns": lambda a: np.asfortranarray(np.concatenate([a, a]))[: len(a)],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "every other": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
}
way = st.sampled_from(sorted(WAYS))
size = st.integers(1, 4)


@given(way, way, size, size, st.integers(0, 4), st.booleans())
def test_all_operands(left, right, m, n, k, accumulate):
    random = np.random.RandomState(0)
    a, b = random.randint(-9, 9, (m, k)), random.randint(-9, 9, (k, n))
    whole = np.ones((m, n + 2), "f")
    before = whole.copy()
    out = whole[:, 1 : n + 1]
    sgemm(WAYS[left](a.astype("f")), WAYS[right](b.astype("f")), out, accumulate)
    np.testing.assert_array_equal(out, a @ b + accumulate)
    np.testing.assert_array_equal(whole[:, [0, -1]], before[:, [0, -1]])


def test_refuses_what_it_would_overwrite_wrongly():
    square = np.ones((2, 2), "f")
    with pytest.raises(ValueError, match="rows"):
        sgemm(square, square, np.asfortranarray(square))
