import pytest

from divisible.communication.wire import WIRE
from divisible.planning.coding import CodingRate, measure_coding


def test_every_dtype_is_measured_once():
    rates = measure_coding()
    assert list(rates) == list(WIRE)
    assert all(rate.encode > 0 and rate.decode > 0 for rate in rates.values())
    assert measure_coding(["int8"])["int8"] is rates["int8"]


def test_what_a_replica_computes():
    # Of 300 elements: all its own, and its third of the sum; a third from each of
    # three, and the mean.
    rate = CodingRate(encode=100, decode=300)
    assert rate.seconds(300, replicas=3) == pytest.approx((300 + 100) / 100 + 600 / 300)


@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        ((0, 1), ValueError, "encode of a rate is 0: it must be positive"),
        ((1, -1), ValueError, "decode of a rate is -1"),
        ((float("inf"), 1), ValueError, "encode of a rate is inf"),
        (("fast", 1), TypeError, "encode of a rate is 'fast'"),
    ],
)
def test_impossible_rates_are_refused(rate, error, message):
    with pytest.raises(error, match=message):
        CodingRate(*rate)
