"""What makes up for the rounding of messages."""

import numpy as np
import pytest

from benchmarks.message_dtypes.feedback import WAYS, Edge, Way
from benchmarks.message_dtypes.names import WHOLE

random = np.random.RandomState(0)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_edge_rounds_unless_it_sends_float32(way):
    edge, x = Edge(way, 8), random.standard_normal((4, 32)).astype("f")
    for send in (edge.forward, edge.backward):
        assert np.array_equal(send(x), x) is (way.dtype == WHOLE)


def test_fed_back_errors_vanish_in_the_mean():
    g = random.standard_normal((4, 32)).astype("f")

    def error(way, n):
        edge = Edge(way, 4)
        return np.abs(np.mean([edge.backward(g) for _ in range(n)], axis=0) - g).max()

    fed_back = Way("int4", feeds_back=True)
    assert error(fed_back, 50) < 0.1 * error(Way("int4"), 50)


def test_differences_come_closer_to_a_sample_that_stays():
    edge, x = Edge(Way("int4", sends_differences=True), 8), random.randn(2, 32)
    x = x.astype("f")
    edge.samples = np.array([5, 2])
    errors = [np.abs(edge.forward(x) - x).max() for _ in range(4)]
    for before, after in zip(errors, errors[1:]):
        assert after < 0.1 * before
    # Other samples begin anew, and those of a test are sent as they are.
    edge.samples = np.array([0, 1])
    assert np.abs(edge.forward(x) - x).max() == pytest.approx(errors[0])
    edge.samples = None
    assert np.abs(edge.forward(x) - x).max() == pytest.approx(errors[0])
