"""Products of parts of matrices against NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.gemm import gemm


def _field(a):
    """Returns an equal array whose rows are at a distance that is no whole number."""
    records = np.zeros(len(a), [("row", a.dtype, a.shape[1:]), ("byte", "i1")])
    records["row"] = a
    return records["row"]


WAYS = {
    "rows": lambda a: np.ascontiguousarray(a),
    "columns": lambda a: np.asfortranarray(a),
    "part of rows": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    "part of columns": lambda a: np.asfortranarray(np.concatenate([a, a]))[: len(a)],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "a field of records": lambda a: _field(a),
    "every other": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
}
way = st.sampled_from(sorted(WAYS))
size = st.integers(1, 4)


@given(way, way, st.integers(0, 4), size, st.integers(0, 4), *[st.booleans()] * 2)
def test_all_operands(left, right, m, n, k, accumulate, is_double):
    random = np.random.RandomState(0)
    a, b = random.randint(-9, 9, (m, k)), random.randint(-9, 9, (k, n))
    dtype = "d" if is_double else "f"
    whole = np.ones((m, n + 2), dtype)
    before = whole.copy()
    out = whole[:, 1 : n + 1]
    gemm(WAYS[left](a.astype(dtype)), WAYS[right](b.astype(dtype)), out, accumulate)
    np.testing.assert_array_equal(out, a @ b + accumulate)
    np.testing.assert_array_equal(whole[:, [0, -1]], before[:, [0, -1]])


def test_refuses_what_it_would_overwrite_wrongly():
    square = np.ones((2, 2), "f")
    with pytest.raises(ValueError, match="rows"):
        gemm(square, square, np.asfortranarray(square))
