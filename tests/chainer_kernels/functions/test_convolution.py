"""Kernels of convolutions against Chainer's functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import gradient_check
from hypothesis import assume, given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import bfloat16 as rounding
from chainer_kernels import providers
from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import channels_first
from tests.support import bfloat16, kernels
from tests.support.bfloat16 import in_bfloat16
from tests.support.examples import examples


class Case(NamedTuple):
    """A convolution, its batch and its channels of a group."""

    geometry: Geometry
    sizes: tuple[int, ...]
    batch: int
    channels: int
    outs: int

    def arrays(self, seed: int, order: str = "C") -> list[np.ndarray]:
        """Returns x, W and b."""
        groups = self.geometry.groups
        x = (self.batch, groups * self.channels, *self.sizes)
        W = (groups * self.outs, self.channels, *self.geometry.kernel)
        return [
            kernels.arrays(x, seed, order),
            kernels.arrays(W, seed + 1),
            kernels.arrays(W[:1], seed + 2),
        ]

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of Chainer's functions."""
        return {
            "stride": self.geometry.stride,
            "pad": self.geometry.pad,
            "dilate": self.geometry.dilation,
            "groups": self.geometry.groups,
        }


@st.composite
def cases(draw: Any, n_axes: st.SearchStrategy[int]) -> Case:
    """Draws what has an output."""
    n = draw(n_axes)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(n))

    geometry = Geometry(
        each(1, 4),
        each(1, 3),
        each(0, 3),
        each(1, 2),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    sizes = each(1, 8)
    assume(min(geometry.output_sizes(sizes)) > 0)
    # Groups of few channels are computed in a way of their own.
    few = st.sampled_from((1, 2, 3, 9))
    return Case(
        geometry, sizes, draw(st.sampled_from((0, 1, 2, 30))), draw(few), draw(few)
    )


@examples(100)
@given(cases(st.just(2)), kernels.orders, st.integers(0, 99))
def test_two_axes(case, order, seed):
    def convolve(x, W, b):
        cover_all = case.geometry.cover_all
        return F.convolution_2d(x, W, b, cover_all=cover_all, **case.options)

    names = ["Convolution2DFunction.forward_cpu", "Convolution2DGradW.forward_cpu"]
    names += ["Deconvolution2DFunction.forward_cpu"]
    kernels.check(convolve, case.arrays(seed, order), names)


@given(cases(st.sampled_from((1, 3))), kernels.orders, st.integers(0, 99))
def test_other_numbers_of_axes(case, order, seed):
    def convolve(x, W, b):
        cover_all = case.geometry.cover_all
        return F.convolution_nd(x, W, b, cover_all=cover_all, **case.options)

    names = ["ConvolutionND.forward", "ConvolutionNDGradW.forward"]
    kernels.check(
        convolve, case.arrays(seed, order), [*names, "DeconvolutionND.forward"]
    )


@examples(100)
@given(cases(st.integers(1, 3)), kernels.orders, st.integers(0, 99))
def test_deconvolution(case, order, seed):
    x, W, _ = case.arrays(seed)
    y_sizes = case.geometry.output_sizes(x.shape[2:])
    gy = kernels.arrays((len(x), len(W), *y_sizes), seed, order)
    b = kernels.arrays(x.shape[1:2], seed)
    n_axes = len(y_sizes)

    def deconvolve(gy, W, b):
        options = dict(case.options, outsize=x.shape[2:])
        if n_axes == 2:
            return F.deconvolution_2d(gy, W, b, **options)
        return F.deconvolution_nd(gy, W, b, **options)

    name = {2: "Deconvolution2DFunction.forward_cpu"}.get(
        n_axes, "DeconvolutionND.forward"
    )
    kernels.check(deconvolve, [gy, W, b], [name])


def test_deconvolution_of_its_own_size():
    x, W = kernels.arrays((2, 4, 3, 5), 0), kernels.arrays((4, 3, 4, 3), 1)
    kernels.check(
        lambda x, W: F.deconvolution_2d(x, W, stride=2, pad=1),
        [x, W],
        ["Deconvolution2DFunction.forward_cpu", "Convolution2DFunction.forward_cpu"],
    )
    kernels.check(
        lambda x, W: F.deconvolution_nd(x, W, stride=(2, 3), pad=1),
        [x, W],
        ["DeconvolutionND.forward", "ConvolutionND.forward"],
    )


def test_weights_alone_of_a_deconvolution():
    x, W = kernels.arrays((2, 3, 4, 4), 0), kernels.arrays((3, 2, 3, 3), 1)
    alone = kernels.run(lambda W: F.deconvolution_2d(x, W, stride=2), [W])
    both = kernels.run(lambda x, W: F.deconvolution_2d(x, W, stride=2), [x, W])
    np.testing.assert_array_equal(alone[1][0], both[1][1])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("nd", [False, True])
def test_second_derivatives(stride, nd):
    x, W, b = (
        kernels.arrays(shape, i)
        for i, shape in enumerate([(2, 4, 5, 4), (6, 2, 3, 2), 6])
    )
    convolve = F.convolution_nd if nd else F.convolution_2d

    def penalty(x, W, b):
        y = F.square(convolve(x, W, b, stride=stride, pad=1, groups=2))
        gx, gW = chainer.grad([y], [x, W], enable_double_backprop=True)
        return F.sum(gx**2) + F.sum(gW**3)

    kernels.check(penalty, [x, W, b], [], atol=1e-4)


def test_gradients_are_derivatives():
    shapes = [(2, 2, 4, 3), (3, 2, 3, 3), 3]
    x, W, b = (kernels.arrays(shape, i) for i, shape in enumerate(shapes))
    gradient_check.check_backward(
        lambda *v: F.convolution_2d(*v, stride=2, pad=1),
        (x, W, b),
        kernels.arrays((2, 3, 2, 2), 4),
        eps=1e-2,
        atol=1e-3,
        rtol=1e-3,
    )


def test_same_bits_each_time_and_channels_last():
    x, W = kernels.arrays((5, 8, 9, 9), 0), kernels.arrays((16, 8, 3, 3), 1)
    (y,), gradients = kernels.run(lambda x, W: F.convolution_2d(x, W, pad=1), [x, W])
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    (again,), others = kernels.run(lambda x, W: F.convolution_2d(x, W, pad=1), [x, W])
    for a, b in zip([y, *gradients], [again, *others]):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("x", "W", "options"),
    [
        ((1, 2, 3, 3), (2, 2, 4, 4), {}),
        ((1, 4, 3, 3), (3, 2, 1, 1), {"groups": 2}),
        ((1, 2, 3, 3), (2, 2, 1, 1), {"pad": -1}),
        ((1, 2, 3, 3), (2, 2, 1, 1), {"cudnn_fast": True}),
    ],
)
def test_errors_are_chainers(x, W, options):
    x, W = kernels.arrays(x, 0), kernels.arrays(W, 1)
    with pytest.raises(Exception) as ours:
        F.convolution_2d(x, W, **options)
    with chainer_kernels.disabled(), pytest.raises(type(ours.value)) as theirs:
        F.convolution_2d(x, W, **options)
    assert str(ours.value) == str(theirs.value)


def test_takes_what_is_read_only_or_not_aligned():
    x, W = kernels.arrays((2, 3, 4, 4), 0), kernels.arrays((5, 3, 3, 3), 1)
    right, gradients = kernels.run(lambda x, W: F.convolution_2d(x, W, pad=1), [x, W])
    x.flags.writeable = False
    odd = np.frombuffer(b" " + W.tobytes(), "f", offset=1).reshape(W.shape)
    y, others = kernels.run(lambda x, W: F.convolution_2d(x, W, pad=1), [x, odd])
    for a, b in zip([*right, *gradients], [*y, *others]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("nd", [False, True])
def test_float16_is_rounded_once(nd):
    shapes = [(3, 4, 5, 5), (6, 4, 3, 3), (6,)]
    arrays = [kernels.arrays(s, i).astype("e") for i, s in enumerate(shapes)]
    convolve = F.convolution_nd if nd else F.convolution_2d
    (y,), gradients = kernels.run(lambda *v: convolve(*v, pad=1), arrays)
    with chainer_kernels.disabled():
        (right,), right_gradients = kernels.run(
            lambda *v: convolve(*v, pad=1), [a.astype("d") for a in arrays]
        )
    for ours, exact in zip([y, *gradients[:2]], [right, *right_gradients[:2]]):
        assert ours.dtype == np.float16
        # The output gradients are rounded too.
        np.testing.assert_allclose(ours, exact, 1e-3, 1e-3 * np.abs(exact).max())


def test_float16_that_is_exceeded_is_infinite_without_a_warning():
    x, W = np.full((1, 1, 3, 3), 6e4, "e"), np.full((2, 1, 3, 3), 2, "e")
    with kernels.called() as names:
        y = F.convolution_2d(x, W)
    assert np.isinf(y.array).all() and names == {"Convolution2DFunction.forward_cpu"}


def test_leaves_other_dtypes_to_chainer():
    x, W = kernels.arrays((1, 2, 3, 3), 0), kernels.arrays((2, 2, 1, 1), 1)
    with kernels.called() as names:
        y = F.convolution_2d(x.astype("d"), W.astype("d"))
    assert y.dtype == np.float64 and not names


@pytest.mark.parametrize(
    "function, x, W, options",
    [
        (F.convolution_2d, (4, 16, 9, 9), (32, 16, 3, 3), {"pad": 1}),
        (F.convolution_2d, (2, 3, 8, 8), (4, 3, 2, 2), {"stride": 2}),
        (F.convolution_2d, (2, 6, 5, 5), (6, 1, 3, 3), {"groups": 6}),
        (F.convolution_nd, (2, 16, 9), (32, 16, 3), {"dilate": 2}),
        (F.convolution_nd, (2, 4, 4, 5, 6), (8, 4, 2, 2, 2), {}),
        (F.deconvolution_2d, (4, 16, 6, 6), (16, 8, 3, 3), {"stride": 2}),
        (F.deconvolution_nd, (2, 16, 9), (16, 8, 3), {}),
    ],
)
@in_bfloat16
def test_in_bfloat16(function, x, W, options):
    arrays = kernels.arrays(x, 0), kernels.arrays(W, 1)
    bfloat16.check(lambda x, W: function(x, W, **options), arrays)


@pytest.mark.skipif(
    providers.bfloat16_instructions() is None, reason="nothing is rounded before"
)
def test_output_gradient_is_rounded_once_for_two_products(monkeypatch):
    """Unless a hook may change it between them."""
    x, W = kernels.arrays((4, 16, 8, 8), 0), kernels.arrays((32, 16, 3, 3), 1)
    gy = channels_first(kernels.arrays((4, 8, 8, 32), 2))
    sizes, run = [], rounding._run
    monkeypatch.setattr(
        rounding, "_run", lambda loop, a, out: (sizes.append(a.size), run(loop, a, out))
    )

    def gradients():
        inputs = chainer.Variable(x), chainer.Variable(W)
        with chainer_kernels.products("bfloat16"):
            y = F.convolution_2d(*inputs, pad=1)
        sizes.clear()
        y.grad = gy
        y.backward()
        return sizes.count(gy.size), [each.grad for each in inputs]

    n_times, ours = gradients()
    with chainer.function_hooks.TimerHook():
        n_times_seen, right = gradients()
    assert (n_times, n_times_seen) == (1, 2)
    for one, other in zip(ours, right):
        np.testing.assert_array_equal(one, other)
