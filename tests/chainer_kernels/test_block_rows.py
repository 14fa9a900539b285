"""Products that skip blocks give what dense products of weights with zeros give."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import block_rows
from chainer_kernels.block_rows import LINEAR, BlockRows, are_whole_tiles, live_tiles
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import blas
from tests.support import kernels

sizes = st.integers(1, 3)


@st.composite
def layers(draw):
    """A convolution, random zeros among its tiles, weights, and an input."""
    kernel = draw(st.sampled_from([(1,), (1, 1), (3, 3), (2, 3), (5,)]))
    axes = len(kernel)
    geometry = Geometry(
        kernel,
        tuple(draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))),
        tuple(draw(st.lists(st.integers(0, 2), min_size=axes, max_size=axes))),
        tuple(draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes))),
    )
    outs, ins = draw(sizes), draw(sizes)
    seed = draw(kernels.seeds)
    random = np.random.default_rng(seed)
    live = random.random((outs, ins, np.prod(kernel))) < draw(
        st.sampled_from([0.0, 0.3, 1.0])
    )
    W = random.normal(size=(outs * 8, ins * 8, *kernel)).astype(np.float32)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, geometry.dilation)]
    images = [draw(st.integers(span, span + 4)) for span in spans]
    x = random.normal(size=(draw(sizes), *images, ins * 8)).astype(np.float32)
    return geometry, live, W, x


def masked(live, W):
    """The weights with zeros in the tiles that are skipped."""
    whole = live.repeat(8, axis=0).repeat(8, axis=1)
    return np.where(whole.reshape(W.shape), W, np.float32(0))


def assert_equal_but_for_order(found, expected):
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-6 * scale)


@given(layers())
def test_outputs_and_gradients_are_those_of_dense_products(layer):
    geometry, live, W, x = layer
    rows, zeros = BlockRows(live), masked(live, W)
    # What is skipped is not read.
    dirty = np.where(zeros == 0, np.float32(np.nan), W)
    y = rows.forward(x, rows.tiles_of(dirty), geometry)
    assert_equal_but_for_order(y, blas.convolution(x, zeros, None, geometry))
    gy = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    sizes = x.shape[1:-1]
    gx = rows.data(gy, rows.tiles_of(dirty), geometry, sizes)
    assert_equal_but_for_order(gx, blas.convolution_data(gy, zeros, geometry, sizes))
    gW = np.full_like(W, np.nan)
    rows.write(rows.weights(x, gy, geometry), gW)
    dense = blas.convolution_weights(x, gy, geometry)
    assert_equal_but_for_order(gW, masked(live, dense))
    assert not gW[masked(live, np.ones_like(W)) == 0].any()


@given(kernels.seeds, st.integers(1, 20), st.integers(1, 20))
def test_rows_do_not_depend_on_the_rows_beside_them(seed, n, first):
    random = np.random.default_rng(seed)
    rows = BlockRows(random.random((3, 4, 1)) < 0.6)
    W = random.normal(size=(24, 32)).astype(np.float32)
    x = random.normal(size=(first + n, 1, 32)).astype(np.float32)
    whole = rows.forward(x, rows.tiles_of(W), LINEAR)
    part = rows.forward(x[first:], rows.tiles_of(W), LINEAR)
    np.testing.assert_array_equal(whole[first:], part)


@given(kernels.seeds, st.integers(9, 70), sizes, sizes, st.sampled_from([0, 0.4, 1]))
def test_panels_give_the_bits_of_single_rows(seed, n, outs, ins, density):
    random = np.random.default_rng(seed)
    rows = BlockRows(random.random((outs, ins, 1)) < density)
    W = random.normal(size=(outs * 8, ins * 8)).astype(np.float32)
    x = random.normal(size=(n, 1, ins * 8)).astype(np.float32)
    gy = random.normal(size=(n, 1, outs * 8)).astype(np.float32)
    found = []
    for has_wide_registers in (False, True):
        has = mock.Mock(return_value=has_wide_registers)
        with mock.patch.object(block_rows, "_has_wide_registers", has):
            tiles = rows.tiles_of(W)
            y, gx = rows.forward(x, tiles, LINEAR), rows.data(gy, tiles, LINEAR, (1,))
            found.append((y, gx))
    for narrow, wide in zip(*found):
        np.testing.assert_array_equal(narrow, wide)


def test_no_samples():
    rows = BlockRows(np.ones((1, 2, 1), bool))
    W, x, gy = (np.ones(shape, "f") for shape in ((8, 16), (0, 1, 16), (0, 1, 8)))
    assert rows.forward(x, rows.tiles_of(W), LINEAR).shape == (0, 1, 8)
    assert rows.data(gy, rows.tiles_of(W), LINEAR, (1,)).shape == (0, 1, 16)
    assert not rows.weights(x, gy, LINEAR).any()


def test_tiles_are_written_and_added():
    rows = BlockRows(np.eye(2, dtype=bool)[:, :, None])
    W = np.arange(256, dtype=np.float32).reshape(16, 16)
    out, expected = np.full_like(W, np.nan), masked(rows.live, W)
    rows.write(rows.tiles_of(W), out)
    np.testing.assert_array_equal(out, expected)
    rows.add(rows.tiles_of(W), out)
    np.testing.assert_array_equal(out, 2 * expected)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), kernels.seeds)
def test_live_tiles_are_those_with_an_element(outs, ins, taps, seed):
    random = np.random.default_rng(seed)
    is_zero = random.random((outs * 8, ins * 8, taps)) < 0.98
    live = live_tiles(is_zero)
    assert live.shape == (outs, ins, taps)
    for place in np.ndindex(live.shape):
        out, into, tap = place
        tile = is_zero[out * 8 : out * 8 + 8, into * 8 : into * 8 + 8, tap]
        assert live[place] == (not tile.all())


def test_weights_without_whole_tiles_are_refused():
    assert not are_whole_tiles((16, 12)) and not are_whole_tiles((0, 8))
    with pytest.raises(ValueError, match="12 inputs .* multiples of 8"):
        live_tiles(np.ones((16, 12), bool))
