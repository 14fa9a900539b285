"""Products added in place against NumPy's."""

import numpy as np
import pytest
import threadpoolctl

from chainer_kernels.gemm import blas_threads, gemm_add


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize(
    "layout",
    [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1],
    ],
)
def test_gemm_add(layout, k, dtype):
    random = np.random.RandomState(0)
    for m, n in ((3, 4), (1, 4), (3, 1), (1, 1), (0, 2)):
        a = layout(random.randn(m, k).astype(dtype))
        b = layout(random.randn(k, n).astype(dtype))
        out = random.randn(m, n).astype(dtype)
        expected = out + a.dot(b)
        gemm_add(out, a, b)
        np.testing.assert_allclose(out, expected, rtol=1e-5)


def pool(api, n_threads):
    return {"user_api": api, "num_threads": n_threads}


@pytest.mark.parametrize(
    "pools, expected",
    [
        ([pool("blas", 2), pool("blas", 8), pool("openmp", 16)], 8),
        ([pool("openmp", 16)], 1),
    ],
)
def test_threads_are_those_of_the_first_time(monkeypatch, pools, expected):
    blas_threads.cache_clear()
    try:
        for found in (pools, [pool("blas", 99)]):
            monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda f=found: f)
            assert blas_threads() == expected
    finally:
        blas_threads.cache_clear()
