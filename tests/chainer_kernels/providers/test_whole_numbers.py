"""Exact products of 8-bit numbers, and where they are not offered."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import providers
from chainer_kernels.providers import blas, whole_numbers

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
    assert whole_numbers.has_product(m, k, n)
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
def test_nothing_has_no_product():
    for shape in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        assert not whole_numbers.has_product(*shape)


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
from chainer_kernels.providers import whole_numbers
name = whole_numbers.instructions()
print(name)
if name is not None:
    x, W = np.full((65, 1024), 255, np.uint8), np.full((70, 1024), -128, np.int8)
    for n in (64, 65):
        found = whole_numbers.product(x[:n], W)
        assert (found == 255 * -128 * 1024).all(), found
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
