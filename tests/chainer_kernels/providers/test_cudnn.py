"""What cuDNN is told of convolutions and normalizations, and what comes back."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import is_channels_last
from chainer_kernels.providers import cudnn
from chainer_kernels.providers.cudnn_library import EngineChoice
from tests.support import fake_cudnn, kernels
from tests.support.examples import examples
from tests.support.fake_cudnn import on_gpu

CHOICE = EngineChoice(tensor_cores=True)


@st.composite
def convolutions(draw):
    """A geometry, and the shapes of x, W and y."""
    axes = draw(st.integers(1, 3))

    def each(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * axes))

    groups = draw(st.integers(1, 3))
    geometry = Geometry(each(1, 3), each(1, 2), each(0, 2), each(1, 2), groups)
    sizes, outs, channels, n = each(3, 6), *(draw(st.integers(1, 3)) for _ in "abc")
    y_sizes = geometry.output_sizes(sizes)
    assume(min(y_sizes) > 0)
    return (
        geometry,
        (n, channels * groups, *sizes),
        (outs * groups, channels, *geometry.kernel),
        (n, outs * groups, *y_sizes),
    )


def right(geometry, x, W, gy, b):
    """The output, and the gradients of x and W, in float64."""
    x, W, gy, b = (chainer.Variable(np.asarray(a, "d")) for a in (x, W, gy, b))
    kernel, stride, pad, dilation, groups, _ = geometry
    y = F.convolution_nd(x, W, b, stride, pad, False, dilation, groups)
    gx, gW = chainer.grad([y], [x, W], [gy])
    return y.array, gx.array, gW.array


@examples(40)
@given(convolutions(), kernels.orders, kernels.orders, st.integers(0, 99))
def test_convolution(convolution, x_order, gy_order, seed):
    geometry, *shapes = convolution
    x, W, gy = (
        kernels.arrays(shape, seed + i, order)
        for i, (shape, order) in enumerate(zip(shapes, (x_order, "C", gy_order)))
    )
    b, extra = kernels.arrays(W.shape[:1], seed), kernels.arrays(x.shape[1:2], seed)
    y, gx, gW = right(geometry, x, W, gy, b)
    x, W, gy, b, extra = map(on_gpu, (x, W, gy, b, extra))
    with fake_cudnn.gpu():
        ours = cudnn.convolution(x, W, b, geometry, CHOICE)
        our_gx = cudnn.convolution_data(gy, W, extra, geometry, x.shape[2:], CHOICE)
        our_gW = cudnn.convolution_weights(x, gy, geometry, CHOICE)
    gx += extra.reshape(-1, *[1] * (x.ndim - 2))
    for our, exact in ((ours, y), (our_gx, gx), (our_gW, gW)):
        assert our.dtype == np.float32
        np.testing.assert_allclose(our, exact, 1e-5, 1e-5)
    assert our_gW.flags.c_contiguous
    for first, our in ((x, ours), (gy, our_gx)):
        if is_channels_last(first) and not first.flags.c_contiguous:
            assert is_channels_last(our)
        else:
            assert our.flags.c_contiguous


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("refused", [(), ("bias",)])
def test_bias_is_added_apart_where_no_engine_adds_it(recwarn, tensor_cores, refused):
    x, W, b = (kernels.arrays(s, 0) for s in ((2, 3, 5, 5), (4, 3, 3, 3), (4,)))
    geometry = Geometry((3, 3), (1, 1), (0, 0), (1, 1))
    y, *_ = right(geometry, x, W, kernels.arrays((2, 4, 3, 3), 1), b)
    with fake_cudnn.gpu() as graphs:
        graphs.refused = frozenset(refused)
        ours = cudnn.convolution(
            *map(on_gpu, (x, W, b)), geometry, EngineChoice(tensor_cores)
        )
        n_graphs = len(graphs.made)
    np.testing.assert_allclose(ours, y, 1e-5, 1e-5)
    assert n_graphs == 1 + bool(tensor_cores and refused)
    assert not recwarn.list


def test_arrays_are_aligned():
    memory = np.zeros(3 * 16 + 1, "f")
    x = on_gpu(memory[1:]).reshape(1, 3, 4, 4)
    x += kernels.arrays(x.shape, 0)
    assert x.ctypes.data % 16
    W = on_gpu(kernels.arrays((2, 3, 1, 1), 1))
    geometry = Geometry((1, 1), (1, 1), (0, 0), (1, 1))
    addresses = []
    with fake_cudnn.gpu() as graphs:
        execute = graphs.execute

        def noting(self, pointers, workspace, handle):
            addresses.extend(pointers.values())
            execute(self, pointers, workspace, handle)

        graphs.execute = noting
        y = cudnn.convolution(x, W, None, geometry, CHOICE)
    assert len(addresses) == 3 and not any(address % 16 for address in addresses)
    np.testing.assert_allclose(y, np.einsum("ncij,oc->noij", x, W[:, :, 0, 0]), 1e-5)


@pytest.mark.parametrize("order", ["C", "channels last", "gaps"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("has_running", [True, False])
def test_batch_normalization(shape, order, dtype, has_running):
    n = shape[1]
    x, gy = (
        kernels.in_order(kernels.arrays(shape, i).astype(dtype), order) for i in (0, 1)
    )
    gamma, beta, mean, var = (kernels.arrays((n,), i) for i in range(2, 6))
    running = [mean.astype(dtype), np.abs(var).astype(dtype)]
    double = [
        chainer.Variable(a.astype("d"))
        for a in (x, gamma.astype(dtype), beta.astype(dtype))
    ]
    expected = [a.astype("d") for a in running]
    y = F.batch_normalization(
        *double, eps=1e-3, running_mean=expected[0], running_var=expected[1], decay=0.7
    )
    gradients = chainer.grad([y], double, [chainer.Variable(gy.astype("d"))])
    running = tuple(map(on_gpu, running))
    x, gy, gamma, beta = map(on_gpu, (x, gy, gamma.astype(dtype), beta.astype(dtype)))
    with fake_cudnn.gpu():
        ours, *statistics = cudnn.batch_normalization(
            x, gamma, beta, running if has_running else None, 1e-3, 0.7, CHOICE
        )
        ours_back = cudnn.batch_normalization_backward(
            gy, x, gamma, *statistics, CHOICE
        )
    tolerance = 1e-5 if dtype == "f" else 5e-3
    for our, exact in (
        (ours, y.array),
        *((a, g.array) for a, g in zip(ours_back, gradients)),
        *(zip(running, expected) if has_running else ()),
    ):
        np.testing.assert_allclose(our, exact, tolerance, tolerance)
    assert [a.dtype.char for a in (ours, *statistics)] == [dtype, "f", "f"]
    assert [a.dtype.char for a in ours_back] == [dtype, "f", "f"]


def test_what_is_refused_is_none():
    x, W, gy, b = (
        on_gpu(kernels.arrays(s, 0))
        for s in ((2, 3, 5, 5), (3, 3, 3, 3), (2, 3, 3, 3), (3,))
    )
    geometry = Geometry((3, 3), (1, 1), (0, 0), (1, 1))
    with fake_cudnn.gpu() as graphs, pytest.warns(RuntimeWarning) as caught:
        graphs.engines = ()
        assert cudnn.convolution(x, W, b, geometry, CHOICE) is None
        assert cudnn.convolution_data(gy, W, b, geometry, (5, 5), CHOICE) is None
        assert cudnn.convolution_weights(x, gy, geometry, CHOICE) is None
        assert cudnn.batch_normalization(x, b, b, None, 1e-5, 0.9, CHOICE) is None
        assert cudnn.batch_normalization_backward(x, x, b, b, b, CHOICE) is None
    assert len(caught) == 1
    assert "leaves to Chainer what cuDNN refuses" in str(caught[0].message)
