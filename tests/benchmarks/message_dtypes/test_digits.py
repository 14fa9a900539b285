"""The parts of the benchmark of narrow messages that run in one process."""

import numpy as np
import pytest

from benchmarks.message_dtypes import digits
from benchmarks.message_dtypes.names import DTYPES


def test_a_model_rounds_at_the_cuts_of_its_stages():
    model = digits.rounding_model(0, 4, ("int8", "bf16"))
    rounds = [isinstance(layer, digits.Rounded) for layer in model]
    assert np.flatnonzero(rounds).tolist() == [4, 8, 12]


def test_errors_are_smaller_with_more_bits():
    values = np.random.RandomState(0).standard_normal(1000).astype("f")
    errors = {name: digits.error(values, name) for name in (*DTYPES, digits.ROTATED)}
    assert errors["fp16"] < errors["bf16"] < errors["int8"] < errors["e4m3"]
    assert errors["e4m3"] < errors["e5m2"] < errors["int4"] < 0.1
    # Normally distributed numbers stay so when they are rotated.
    assert errors[digits.ROTATED] == pytest.approx(errors["int4"], rel=0.1)


def test_a_rotation_is_orthogonal():
    matrix = digits.hadamard(32)
    np.testing.assert_allclose(matrix @ matrix, np.eye(32), atol=1e-6)
