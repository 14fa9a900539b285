import pytest

from divisible.planning.units import (
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (1234.4, "1234 s"),
        (999.6, "1000 s"),
        (9.996e-4, "1 ms"),
        (2e-9, "0.002 us"),
    ],
)
def test_times_are_rounded_before_their_unit_is_chosen(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "text", ["1Gb/s", "1Gib/s", "1 Gibit/s", "5 mbits/s", "10gbps"]
)
def test_bits_are_not_taken_for_bytes(text):
    with pytest.raises(ValueError, match="bits or bytes"):
        parse_rate(text)


def test_bandwidths():
    assert parse_rate("2Gbit/s") == 2.5e8
    assert parse_rate("1GiB/s") == 2**30
    assert parse_rate("1e6") == 1e6


@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds])
@pytest.mark.parametrize("text", ["1.2.3", ".", "", "1..5", "x"])
def test_what_is_no_number_is_said(parse, text):
    with pytest.raises(ValueError, match="is not a (size|time)"):
        parse(text)


def test_numbers_as_people_write_them():
    assert [parse_seconds(text) for text in (".5", "5.", "1e-3", "2 ms")] == [
        *(0.5, 5.0, 0.001, 0.002)
    ]
