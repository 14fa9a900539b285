"""Measures of layers that skip blocks."""

import numpy as np
import pytest

from chainer_kernels import block_choice
from chainer_kernels.block_rows import LINEAR, BlockRows
from chainer_kernels.functions.block_products import BlockLayer
from chainer_kernels.geometry import Geometry

CASES = [
    (LINEAR, (5, 16), (8, 16)),
    (Geometry((3, 3), (1, 1), (1, 1), (1, 1)), (2, 16, 4, 4), (8, 16, 3, 3)),
]


@pytest.mark.parametrize("geometry, shape, W", CASES)
@pytest.mark.parametrize("seconds", [(3, 1), (1, 3)])
def test_the_faster_way_is_chosen(geometry, shape, W, seconds, monkeypatch):
    measure, calls = block_choice._seconds, []

    def told(way, *arrays):
        # Both ways run, and only their times are told.
        assert measure(way, *arrays) > 0
        calls.append(way)
        return seconds[len(calls) % 2 == 0]

    monkeypatch.setattr(block_choice, "_seconds", told)
    live = np.ones((1, 2, np.prod(W[2:], dtype=int)), bool)
    layer = BlockLayer(BlockRows(live), geometry, W)
    choice = block_choice.measured(layer, np.ones(W, "f"), shape)
    assert choice.shape == shape
    assert (choice.ms_dense, choice.ms_blocks) == tuple(1e3 * s for s in seconds)
    assert choice.skips == (seconds[1] < seconds[0])
