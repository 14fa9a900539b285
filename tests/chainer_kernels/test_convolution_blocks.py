"""What windows read, against a definition."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from chainer_kernels import convolution_blocks
from chainer_kernels.geometry import Geometry

small = st.integers(1, 3)


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    small,
    st.integers(0, 4),
    small,
    st.sampled_from([1, 200]),
    st.booleans(),
)
def test_every_pair_of_positions_once(size, kernel, stride, pad, dilation, batch, all_):
    geometry = Geometry((kernel,), (stride,), (pad,), (dilation,), 1, all_)
    (n_outputs,) = geometry.output_sizes((size,))
    assume(n_outputs > 0)
    pairs = {
        (tap, i, i * stride - pad + tap * dilation)
        for i in range(n_outputs)
        for tap in range(kernel)
    }
    right = {(tap, i, j) for tap, i, j in pairs if 0 <= j < size}
    plan = convolution_blocks.of_outputs(geometry, batch, 1 << 16, (size,))
    assert _read(plan, size) == right
    plan = convolution_blocks.of_inputs(geometry, batch, 1 << 16, (size,), (n_outputs,))
    found = {(tap, i, j) for tap, j, i in _read(plan, n_outputs)}
    assert found == right


def _read(plan, size):
    """Returns (tap, where it is written, where it is read) without the padding."""
    before = plan.pads[0][0]
    found = [
        (int(plan.order[piece]), int(output), int(window + tap) - before)
        for block in plan.blocks
        for output, window in zip(block.outputs, block.inputs)
        for piece, tap in zip(
            [p for first, end in block.pieces for p in range(first, end)], block.taps
        )
    ]
    assert len(set(found)) == len(found)
    return {(tap, i, j) for tap, i, j in found if 0 <= j < size}


def test_small_batches_are_padded():
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
    plan = convolution_blocks.of_outputs(geometry, 1, 1 << 16, (2, 2))
    assert len(plan.blocks) == 1 and plan.pads == ((1, 1), (1, 1))
    x = np.arange(4.0).reshape(1, 2, 2, 1)
    assert plan.padded(x)[0, :, :, 0].tolist() == [
        [0, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 2, 3, 0],
        [0, 0, 0, 0],
    ]


def test_no_zeros_in_large_batches():
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
    plan = convolution_blocks.of_outputs(geometry, 84, 1 << 16, (4, 4))
    assert [block.taps.size for block in plan.blocks] == [4, 6, 4, 6, 9, 6, 4, 6, 4]
    assert plan.padded(np.ones((84, 4, 4, 1))).shape == (84, 4, 4, 1)
