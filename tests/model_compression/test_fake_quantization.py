import chainer
import numpy as np
import pytest
from chainer.gradient_check import numerical_grad
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from model_compression.affine import Affine
from model_compression.fake_quantization import fake_quantize


def clipped(x, affine):
    """The definition of the slope: a line within the range, flat beyond it."""
    low = affine.real(np.array(affine.lowest)) - affine.scale / 2
    high = affine.real(np.array(affine.highest)) + affine.scale / 2
    return x.clip(float(low), float(high))


@given(
    hnp.arrays(np.float64, 7, elements=st.floats(-3, 3)),
    st.integers(2, 8),
    st.booleans(),
)
def test_gradients_are_those_of_the_definition(x, bits, symmetric):
    affine = Affine.of_range(-1.0, 1.5, bits, symmetric)
    low, high = (
        float(affine.real(np.array(end))) + sign * float(affine.scale) / 2
        for end, sign in ((affine.lowest, -1), (affine.highest, 1))
    )
    # At the bend itself a difference tells nothing.
    x = x[(abs(x - low) > 1e-3) & (abs(x - high) > 1e-3)]
    gy = np.linspace(1, 2, len(x))
    variable = chainer.Variable(x)
    y = fake_quantize(variable, affine)
    y.grad = gy
    y.backward()
    (expected,) = numerical_grad(lambda: (clipped(x, affine),), (x,), (gy,), eps=1e-4)
    np.testing.assert_allclose(variable.grad, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_stays(dtype):
    y = fake_quantize(np.array([0.26, -3], dtype), Affine.of_range(-1, 1, 3, True))
    assert y.dtype == dtype
    np.testing.assert_allclose(y.array, [1 / 3, -1], rtol=1e-3)


def test_gradients_of_gradients_are_there():
    x = chainer.Variable(np.array([0.3, 5.0], np.float32))
    y = fake_quantize(x, Affine.of_range(-1, 1, 3, True))
    (gx,) = chainer.grad([y * y], [x], enable_double_backprop=True)
    (ggx,) = chainer.grad([gx], [x])
    assert ggx.array.tolist() == [2, 0]


def test_integers_are_refused():
    with pytest.raises(chainer.utils.type_check.InvalidType):
        fake_quantize(np.array([1, 2]), Affine.of_range(-1, 1, 3, True))
