"""Signatures describe arrays, and how they lie in what is sent."""

import numpy as np
import pytest

from divisible.communication.signatures import Tensor, signature

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "array, is_transposed",
    [
        (X, False),
        (X[:, :, ::2], False),
        (X[0, 0, 0:1].reshape(()), False),
        (X[:0], False),
        (X.transpose(1, 2, 0), True),
    ],
)
def test_what_is_sent_is_transposed_only_where_it_must_be(array, is_transposed):
    (spec,) = signature([Tensor(array)])
    sent = spec.in_memory(array)
    assert (sent is not array) == is_transposed
    assert sent.shape == spec.shape_in_memory
    arrived = np.ascontiguousarray(sent).reshape(sent.shape)
    received = spec.received(arrived)
    assert (received is not arrived) == is_transposed
    np.testing.assert_array_equal(received, array)
