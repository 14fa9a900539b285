"""Convolutions and products by oneDNN, and what is done where there is none."""

import importlib.metadata
import os
import subprocess
import sys
import threading
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import providers
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import (
    blas,
    onednn,
    onednn_convolutions,
    onednn_library,
)
from tests.support import kernels


def _is_installed():
    try:
        return bool(importlib.metadata.version(onednn_library.PACKAGE))
    except importlib.metadata.PackageNotFoundError:
        return False


installed = pytest.mark.skipif(not _is_installed(), reason="needs oneDNN")


@st.composite
def convolutions(draw):
    """A geometry, and the shapes of x, W and y."""
    axes = draw(st.integers(1, 3))

    def each(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * axes))

    sizes, groups = each(3, 8), draw(st.sampled_from([1, 1, 2, 3]))
    geometry = Geometry(
        each(1, 3), each(1, 2), each(0, 3), each(1, 2), groups, draw(st.booleans())
    )
    channels, outs = (draw(st.sampled_from([1, 3, 8, 16, 20])) for _ in range(2))
    batch = draw(st.integers(0, 3))
    x = (batch, *sizes, channels * groups)
    W = (outs * groups, channels, *geometry.kernel)
    return geometry, x, W, (batch, *geometry.output_sizes(sizes), outs * groups)


@installed
@given(convolutions(), kernels.seeds, st.booleans(), st.booleans())
def test_convolution(convolution, seed, has_bias, relu):
    geometry, *shapes = convolution
    if min(shapes[-1][1:]) <= 0:
        return
    x, W, gy = (kernels.arrays(s, (seed + i) % 2**32) for i, s in enumerate(shapes))
    b = gy[0, 0].reshape(-1)[: len(W)].copy() if has_bias and len(gy) else None
    for compute in (
        lambda provider: provider.convolution(x, W, b, geometry, relu),
        lambda provider: provider.convolution_data(gy, W, geometry, x.shape[1:-1]),
        lambda provider: provider.convolution_weights(x, gy, geometry),
        lambda provider: provider.convolution_weights(
            x, gy, geometry, np.ones_like(W), accumulate=True
        ),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = compute(onednn)
        right = compute(blas)
        assert ours.dtype == right.dtype
        scale = max(1, np.abs(right).max(initial=0))
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_array_equal(compute(onednn), ours)


WAYS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "gaps": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "part": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
}
way = st.sampled_from(sorted(WAYS))
of_rows = st.sampled_from(["rows", "part"])
# Small products are left to BLAS.
size = st.sampled_from([1, 2, 130, 200])


@installed
@given(way, way, of_rows, size, size, size, st.booleans())
def test_product(left, right, result, m, n, k, accumulate):
    random = np.random.RandomState(0)
    a, b = random.randint(-9, 9, (m, k)), random.randint(-9, 9, (k, n))
    operands = WAYS[left](a.astype("f")), WAYS[right](b.astype("f"))
    np.testing.assert_array_equal(onednn.product(*operands), a @ b)
    before = np.full((m, n), 1 if accumulate else np.nan, "f")
    out = WAYS[result](before)
    assert onednn.product(*operands, out, accumulate) is out
    np.testing.assert_array_equal(out, a @ b + accumulate)


GEOMETRY = Geometry((3, 3), (1, 1), (1, 1), (1, 1))


@installed
def test_what_is_no_number_stays_so():
    x = np.full((2, 8, 8, 16), np.nan, "f")
    W = kernels.arrays((16, 16, 3, 3), 0)
    assert np.isnan(onednn.convolution(x, W, None, GEOMETRY, relu=True)).all()


@installed
def test_threads_compute_at_once():
    shapes = (4, 8, 8, 16), (32, 16, 3, 3)
    x, W = (kernels.arrays(shape, i) for i, shape in enumerate(shapes))
    right = onednn.convolution(x, W, None, GEOMETRY)
    wrong = []

    def compute():
        for _ in range(50):
            if not np.array_equal(onednn.convolution(x, W, None, GEOMETRY), right):
                wrong.append(1)

    running = [threading.Thread(target=compute) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in running)


@installed
@pytest.mark.slow
def test_forked_process_computes_too():
    """The threads of OpenMP are not in a process that was forked."""
    code = """
import os, signal, numpy as np
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import onednn
x, W = np.ones((16, 16, 16, 32), "f"), np.ones((64, 32, 3, 3), "f")
geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
y = onednn.convolution(x, W, None, geometry)
child = os.fork()
signal.alarm(30)
same = np.array_equal(onednn.convolution(x, W, None, geometry), y)
if not child:
    os._exit(0 if same else 3)
print(same, os.waitpid(child, 0)[1])
"""
    assert _output(code, OMP_NUM_THREADS="2") == "True 0"


@installed
def test_processor_without_avx2():
    # Nobody asked for it, so there is no warning.
    code = """
import os, warnings
from chainer_kernels import providers
warnings.simplefilter("error")
print(providers.active().NAME)
os.environ["CHAINER_KERNELS_PROVIDER"] = "onednn"
providers.active.cache_clear()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(*[providers.active().NAME for _ in range(2)])
print(*(warning.message for warning in caught), sep="\\n")
"""
    name, names, message = _output(code, ONEDNN_MAX_CPU_ISA="SSE41").splitlines()
    assert name == blas.NAME and names == f"{name} {name}"
    assert message == (
        "chainer_kernels computes by BLAS and Numba: oneDNN is slow on a processor"
        " without AVX2. CHAINER_KERNELS_PROVIDER=blas silences this."
    )


def _output(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **environment},
    )
    return done.stdout.strip()


@installed
def test_refused_convolution_goes_the_other_way(monkeypatch):
    """Whatever oneDNN cannot do is computed all the same, and one line says so."""

    def refuse(*arguments, **options):
        onednn_library.Library.check(3)

    onednn_convolutions._make.cache_clear()
    monkeypatch.setattr(onednn_library._Object, "__init__", refuse)
    monkeypatch.setattr(onednn_convolutions, "_complaints", [])
    x, W = kernels.arrays((2, 8, 8, 16), 0), kernels.arrays((16, 16, 3, 3), 1)
    with pytest.warns(RuntimeWarning, match="oneDNN refuses: .*not impl") as caught:
        y = onednn.convolution(x, W, None, GEOMETRY)
        onednn.convolution_data(y, W, GEOMETRY, (8, 8))
    assert len(caught) == 1
    np.testing.assert_array_equal(y, blas.convolution(x, W, None, GEOMETRY))
    asked = mock.Mock(side_effect=refuse)
    monkeypatch.setattr(onednn_library._Object, "__init__", asked)
    onednn.convolution(x, W, None, GEOMETRY)
    assert not asked.called
    assert len(onednn_convolutions._complaints) == 1
    onednn_convolutions._make.cache_clear()


@installed
def test_weight_gradient_into_what_has_gaps():
    x, gy = kernels.arrays((2, 8, 8, 16), 0), kernels.arrays((2, 8, 8, 16), 1)
    out = np.zeros((16, 32, 3, 3), "f")[:, ::2]
    with pytest.raises(ValueError, match="out must be C contiguous"):
        onednn.convolution_weights(x, gy, GEOMETRY, out)


@installed
def test_no_memory_is_an_error():
    with pytest.raises(MemoryError, match="oneDNN"):
        onednn_library.Library.check(1)


@installed
def test_other_version_is_refused(monkeypatch):
    monkeypatch.setattr(onednn_library, "_MAJOR_VERSION", 4)
    onednn_library.library.cache_clear()
    with pytest.raises(onednn_library.OneDNNError, match=r"3\..* is not 4.x"):
        onednn_library.library()


@pytest.fixture
def choice(monkeypatch):
    """Lets the provider be chosen anew, before and after."""
    monkeypatch.delenv("CHAINER_KERNELS_PROVIDER", raising=False)
    for cached in (providers.active, onednn_library.library):
        cached.cache_clear()
    yield monkeypatch
    for cached in (providers.active, onednn_library.library):
        cached.cache_clear()


class _File:
    """A file of a package that is installed."""

    def __init__(self, path):
        self.name, self._path = os.path.basename(path), path

    def locate(self):
        return self._path


@pytest.mark.parametrize("content", [None, b"", b"no library", "no functions"])
def test_broken_library(choice, tmp_path, content):
    path = str(tmp_path / "libdnnl.so.3")
    if content == "no functions":
        import _ctypes

        os.symlink(_ctypes.__file__, path)
    elif content is not None:
        (tmp_path / "libdnnl.so.3").write_bytes(content)
    choice.setattr(importlib.metadata, "files", lambda package: [_File(path)])
    with pytest.warns(
        RuntimeWarning, match="oneDNN cannot be loaded: .*dnnl"
    ) as caught:
        assert providers.active() is blas
        assert providers.active() is blas
    assert len(caught) == 1


def test_missing_openmp_is_named_with_a_cure(choice, tmp_path):
    def cannot_load(path):
        raise OSError("libgomp.so.1: cannot open shared object file")

    choice.setattr(onednn_library.ctypes, "CDLL", cannot_load)
    found = [_File(str(tmp_path / "libdnnl.so.3"))]
    choice.setattr(importlib.metadata, "files", lambda package: found)
    with pytest.warns(RuntimeWarning, match="libgomp.so.1: .* Install .* libgomp1"):
        assert providers.active() is blas


def test_package_without_its_library(choice):
    choice.setattr(importlib.metadata, "files", lambda package: None)
    with pytest.warns(RuntimeWarning, match="has no libdnnl.so"):
        assert providers.active() is blas


def _nothing_installed(package):
    raise importlib.metadata.PackageNotFoundError(package)


def test_not_installed_is_no_warning(choice):
    choice.setattr(importlib.metadata, "files", _nothing_installed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert providers.active() is blas


def test_not_installed_though_asked_for(choice):
    choice.setattr(importlib.metadata, "files", _nothing_installed)
    choice.setenv("CHAINER_KERNELS_PROVIDER", "onednn")
    with pytest.warns(RuntimeWarning, match="pip install onednn-cpu-gomp"):
        assert providers.active() is blas


@installed
def test_installed_is_used(choice):
    assert providers.active() is onednn
    assert onednn.version().startswith("3.")


def test_blas_by_name(choice):
    choice.setenv("CHAINER_KERNELS_PROVIDER", "blas")
    assert providers.active() is blas


def test_wrong_name(choice):
    choice.setenv("CHAINER_KERNELS_PROVIDER", "mkl")
    with pytest.raises(ValueError, match="'mkl', but providers are called onednn and"):
        providers.active()
