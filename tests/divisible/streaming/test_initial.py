"""Weights drawn by segments are those drawn at once."""

import numpy as np
import pytest
from chainer import initializers
from hypothesis import given
from hypothesis import strategies as st

from divisible.streaming.initial import by_segments, check
from divisible.streaming.segments import ranges

KINDS = [
    initializers.Constant(3),
    initializers.Constant(np.arange(60, dtype="f").reshape(10, 6)),
    initializers.Zero(),
    *(
        getattr(initializers, name)()
        for name in (
            "Normal",
            "LeCunNormal",
            "GlorotNormal",
            "HeNormal",
            "Uniform",
            "LeCunUniform",
            "GlorotUniform",
            "HeUniform",
        )
    ),
    initializers.HeNormal(0.5, fan_option="fan_out"),
    initializers.Normal(rng=np.random.RandomState(0)),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@given(rows=st.integers(1, 12))
def test_same_numbers(kind, rows):
    whole, parts = (np.empty((10, 6), "f") for _ in range(2))
    rng = getattr(kind, "rng", None)
    for array in (whole, parts):
        np.random.seed(5)
        if rng is not None:
            rng.seed(5)
        if array is whole:
            kind(array)
        else:
            by_segments(kind, array, ranges(10, rows))
    np.testing.assert_array_equal(parts, whole)


def test_what_wants_the_whole_is_refused():
    with pytest.raises(TypeError, match="Identity makes the whole array at once"):
        check(initializers.Identity(), (4, 4))
