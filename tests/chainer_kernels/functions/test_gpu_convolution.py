"""Which convolutions cuDNN gets, on a GPU that is played by NumPy."""

import contextlib

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.connection import (
    convolution_2d,
    convolution_nd,
    deconvolution_2d,
    deconvolution_nd,
)

import chainer_kernels
from tests.support import fake_cudnn, kernels
from tests.support.fake_cudnn import on_gpu

# The shapes of x and W of a convolution, and its options.
CASES = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    "groups": ((2, 6, 5, 6), (9, 2, 3, 3), dict(groups=3)),
    "all options": (
        *((3, 4, 9, 8), (2, 2, 3, 2)),
        dict(stride=(2, 1), pad=(1, 2), dilate=(1, 3), groups=2),
    ),
    "left over": ((1, 2, 8, 8), (2, 2, 3, 3), dict(stride=4)),
}


def called(function, name, inputs):
    """Returns what a method of a node gives for arrays of the GPU."""
    function._input_layouts = (None,) * len(inputs)
    with kernels.called() as names:
        (y,) = getattr(function, name)(tuple(map(on_gpu, inputs)))
    assert names == {f"{type(function).__name__}.{name}"}
    assert function._input_indexes_to_retain == (0, 1)
    return y


def left(function, name, inputs):
    """Returns whether a method of a node leaves arrays of the GPU to Chainer."""
    function._input_layouts = (None,) * len(inputs)
    # Chainer's own fails, for it has no GPU here.
    with kernels.called() as names, contextlib.suppress(Exception):
        getattr(function, name)(tuple(map(on_gpu, inputs)))
    return not names


def nodes(case):
    """Returns arrays, and the classes and options of a case's nodes."""
    x_shape, W_shape, options = CASES[case]
    x, W = (kernels.arrays(shape, i) for i, shape in enumerate((x_shape, W_shape)))
    return x, W, options


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_nd", [False, True])
def test_convolution_and_its_gradients(case, is_nd):
    x, W, options = nodes(case)
    b = kernels.arrays((len(W),), 2)
    with chainer_kernels.disabled():
        double = [chainer.Variable(a.astype("d")) for a in (x, W, b)]
        y = F.convolution_2d(*double, **options)
        gy = kernels.arrays(y.shape, 3)
        gx, gW = chainer.grad([y], double[:2], [chainer.Variable(gy.astype("d"))])
    if is_nd:
        function = convolution_nd.ConvolutionND(2, **options)
        function.inputs = [chainer.Variable(a).node for a in (x, W, b)]
        gradient = convolution_nd.ConvolutionNDGradW(function)
        back = deconvolution_nd.DeconvolutionND(2, outsize=x.shape[2:], **options)
        name = "forward"
    else:
        function = convolution_2d.Convolution2DFunction(**options)
        gradient = convolution_2d.Convolution2DGradW(function, W.shape, W.dtype, None)
        back = deconvolution_2d.Deconvolution2DFunction(outsize=x.shape[2:], **options)
        name = "forward_gpu"
    with fake_cudnn.gpu():
        for our, exact in (
            (called(function, name, (x, W, b)), y),
            (called(gradient, name, (x, gy)), gW),
            (called(back, name, (gy, W)), gx),
        ):
            np.testing.assert_allclose(our, exact.array, 1e-5, 1e-5)


def test_what_is_left_to_chainer():
    x, W, _ = nodes("plain")
    gy = kernels.arrays((2, 4, 3, 5), 3)
    make = convolution_2d.Convolution2DFunction

    def gradient(W_dtype):
        return convolution_2d.Convolution2DGradW(make(), W.shape, W_dtype, None)

    with fake_cudnn.gpu():
        assert not left(make(), "forward_gpu", (x, W))
        assert left(make(cover_all=True), "forward_gpu", (x, W))
        assert left(make(cudnn_fast=True), "forward_gpu", (x, W))
        assert left(make(), "forward_gpu", (x, W.astype("e")))
        assert left(make(), "forward_gpu", (x, kernels.arrays((4, 3, 9, 9), 0)))
        assert left(make(), "forward_gpu", (x, kernels.arrays((4, 2, 3, 2), 0)))
        assert left(make(groups=3), "forward_gpu", (x, kernels.arrays((4, 1, 3, 2), 0)))
        assert not left(gradient(W.dtype), "forward_gpu", (x, gy))
        assert left(gradient(np.float16), "forward_gpu", (x, gy))
        # With this size a window reads zeros behind the last input.
        back = deconvolution_2d.Deconvolution2DFunction(stride=4, outsize=(10, 18))
        assert left(back, "forward_gpu", (gy, W))
        with chainer_kernels.disabled():
            assert left(make(), "forward_gpu", (x, W))


@pytest.mark.parametrize("is_nd", [False, True])
def test_deconvolution_of_its_own_size(is_nd):
    x, W = kernels.arrays((2, 4, 3, 5), 0), kernels.arrays((4, 3, 4, 3), 1)
    b = kernels.arrays((3,), 2)
    with chainer_kernels.disabled():
        exact = F.deconvolution_2d(*(a.astype("d") for a in (x, W, b)), stride=2)
    if is_nd:
        function, name = deconvolution_nd.DeconvolutionND(2, stride=2), "forward"
    else:
        function = deconvolution_2d.Deconvolution2DFunction(stride=2)
        name = "forward_gpu"
    with fake_cudnn.gpu():
        y = called(function, name, (x, W, b))
    np.testing.assert_allclose(y, exact.array, 1e-5, 1e-5)
