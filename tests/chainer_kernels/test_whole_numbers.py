"""Exact products of 8-bit numbers, and where they are not offered."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import providers, whole_numbers
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import blas
from tests.support.whole_numbers import convolved_in_numpy

offered = pytest.mark.skipif(
    whole_numbers.instructions() is None, reason="needs oneDNN, and AMX or VNNI"
)
size = st.sampled_from([1, 2, 3, 16, 17, 33, 100, 130])


def exact(x, W):
    return x.astype(np.int32) @ W.T.astype(np.int32)


@offered
@given(size, size, size, st.integers(0, 2**32 - 1))
def test_product_is_exact(m, k, n, seed):
    random = np.random.RandomState(seed)
    x = random.randint(0, 256, (m, k)).astype(np.uint8)
    W = random.randint(-128, 128, (n, k)).astype(np.int8)
    assert whole_numbers.has_product(x.shape, W.shape)
    found = whole_numbers.product(x, W)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, exact(x, W))


@offered
@pytest.mark.parametrize("weight", [-128, 127])
def test_sums_are_not_cut_off(weight):
    x = np.full((33, 20000), 255, np.uint8)
    W = np.full((40, 20000), weight, np.int8)
    found = whole_numbers.product(x, W)
    np.testing.assert_array_equal(found, 255 * weight * 20000)


@offered
@given(
    st.sampled_from([1, 3, 16, 40]),
    st.sampled_from([1, 5, 16, 64]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 2),
    st.sampled_from([1, 2]),
    st.integers(0, 2**32 - 1),
)
def test_convolution_is_exact(c, o, kernel, stride, pad, dilation, groups, seed):
    random = np.random.RandomState(seed)
    x = random.randint(0, 256, (2, 7, 6, c * groups)).astype(np.uint8)
    W = random.randint(-128, 128, (o * groups, c, kernel, 2)).astype(np.int8)
    geometry = Geometry(
        (kernel, 2), (stride, 1), (pad, 0), (dilation, dilation), groups
    )
    if not whole_numbers.has_convolution(x.shape, W.shape, geometry):
        # Some groups have no fast one.
        assert groups > 1
        return
    found = whole_numbers.convolution(x, W, geometry)
    padded = np.pad(x, ((0, 0), (pad, pad), (0, 0), (0, 0)))
    inner = geometry._replace(pad=(0, 0))
    np.testing.assert_array_equal(found, convolved_in_numpy(padded, W, inner))


@offered
@pytest.mark.parametrize("c, kernel", [(300, 3), (3, 28), (64, 1), (2000, 1)])
def test_convolutions_that_round_their_sums_are_not_used(c, kernel):
    geometry = Geometry((kernel, kernel), (1, 1), (0, 0), (1, 1))
    x = np.full((2, 30, 30, c), 255, np.uint8)
    W = np.full((5, c, kernel, kernel), 127, np.int8)
    x[0, 1, 1, 0], W[0, 0, 0, 0] = 254, 126
    if not whole_numbers.has_convolution(x.shape, W.shape, geometry):
        assert (c, kernel) == (3, 28)
        return
    found = whole_numbers.convolution(x, W, geometry)
    np.testing.assert_array_equal(found, convolved_in_numpy(x, W, geometry))


@offered
def test_nothing_has_no_product():
    for m, k, n in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        assert not whole_numbers.has_product((m, k), (n, k))
    geometry = Geometry((3, 3), (1, 1), (0, 0), (1, 1))
    for x in ((0, 5, 5, 4), (2, 2, 5, 4)):
        assert not whole_numbers.has_convolution(x, (8, 4, 3, 3), geometry)


@offered
def test_threads_compute_at_once():
    random = np.random.RandomState(0)
    x = random.randint(0, 256, (64, 300)).astype(np.uint8)
    W = random.randint(-128, 128, (200, 300)).astype(np.int8)
    right, wrong = exact(x, W), []

    def compute():
        for _ in range(50):
            if not np.array_equal(whole_numbers.product(x, W), right):
                wrong.append(1)

    running = [threading.Thread(target=compute) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in running)


CODE = """
import numpy as np
from chainer_kernels import whole_numbers
name = whole_numbers.instructions()
print(name)
if name is not None:
    x, W = np.full((65, 1024), 255, np.uint8), np.full((70, 1024), -128, np.int8)
    for n in (64, 65):
        found = whole_numbers.product(x[:n], W)
        assert (found == 255 * -128 * 1024).all(), found
    from chainer_kernels.geometry import Geometry
    geometry = Geometry((3, 3), (1, 1), (0, 0), (1, 1))
    for c in (3, 32, 300):
        x, W = np.full((2, 9, 9, c), 255, np.uint8), np.full((8, c, 3, 3), 127, np.int8)
        assert whole_numbers.has_convolution(x.shape, W.shape, geometry)
        found = whole_numbers.convolution(x, W, geometry)
        assert (found == 255 * 127 * 9 * c).all(), found
"""


@offered
@pytest.mark.parametrize(
    "limit, name",
    [
        ("AVX2", None),
        ("AVX512_CORE", None),
        ("AVX2_VNNI", "AVX VNNI"),
        ("AVX512_CORE_VNNI", "AVX-512 VNNI"),
    ],
)
def test_on_older_processors(limit, name):
    """Without VNNI sums of two products are cut off at 16 bits: it is not offered."""
    bits = whole_numbers.INSTRUCTIONS
    here = whole_numbers.dnnl.library().get_effective_cpu_isa()
    if name is not None and here & bits[name] != bits[name]:
        pytest.skip(f"this processor has no {name}")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "ONEDNN_MAX_CPU_ISA": limit,
        },
    )
    assert done.stdout.strip() == str(name)


def test_not_by_other_providers(monkeypatch):
    monkeypatch.setattr(providers, "active", lambda: blas)
    assert whole_numbers.instructions() is None
