import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from model_compression.affine import Affine

BITS = st.integers(2, 8)
NUMBERS = st.floats(-1e4, 1e4, width=32)
ARRAYS = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=NUMBERS
)


@given(ARRAYS, BITS, st.booleans())
def test_real_numbers_come_back_within_half_a_step(x, bits, symmetric):
    affine = Affine.of_range(x.min(), x.max(), bits, symmetric)
    back = affine.real(affine.whole(x))
    step = float(affine.scale)
    # Beyond half a step only by the rounding of float32.
    assert (abs(back.astype(np.float64) - x) <= step * 0.5 * (1 + 1e-3) + 1e-30).all()
    # What was rounded is written exactly.
    np.testing.assert_array_equal(affine.real(affine.whole(back)), back)


@given(ARRAYS, BITS, st.booleans())
def test_whole_numbers_have_their_bits_and_zero_is_one(x, bits, symmetric):
    affine = Affine.of_range(x.min(), x.max(), bits, symmetric)
    whole = affine.whole(np.append(x.ravel(), [np.float32(1e6), np.float32(-1e6)]))
    assert (whole == np.round(whole)).all()
    assert affine.highest - affine.lowest <= 2**bits - 1
    assert affine.lowest <= whole.min() and whole.max() <= affine.highest
    np.testing.assert_array_equal(whole.astype(affine.dtype), whole)
    assert affine.real(affine.whole(np.zeros(1, np.float32))) == 0


@given(
    hnp.arrays(
        np.float32, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=NUMBERS
    ),
    BITS,
    st.booleans(),
)
def test_each_channel_has_a_scale_of_its_own(weight, bits, symmetric):
    together = Affine.of_weight(weight, bits, symmetric, per_channel=True)
    assert together.scale.shape == (len(weight), 1)
    for row, scale in zip(weight, together.scale.ravel()):
        alone = Affine.of_range(row.min(), row.max(), bits, symmetric)
        assert alone.scale == scale


def test_an_array_of_zeros_can_be_written():
    zeros = np.zeros((2, 3), np.float32)
    affine = Affine.of_weight(zeros, 4, True, True)
    np.testing.assert_array_equal(affine.real(affine.whole(zeros)), zeros)


@given(hnp.arrays(np.float32, 3, elements=st.floats(2**-10, 1e4, width=32)), BITS)
def test_both_ends_of_a_range_are_written_without_a_cut(ends, bits):
    # The whole number for zero of a range from -a to a is a half, which is rounded.
    for low, high in ((-ends[0], ends[0]), (-ends[1], ends[2])):
        affine = Affine.of_range(low, high, bits, symmetric=False)
        whole = affine.unbounded(np.array([low, high], np.float32))
        assert affine.lowest <= whole[0] and whole[1] <= affine.highest
