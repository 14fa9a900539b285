"""Errors of inner products, against what is known of the formats."""

import sys

import numpy as np
import pytest

from benchmarks import tensor_core_accuracy as benchmark
from benchmarks.tensor_core_accuracy import CORE, WAYS, errors, factors, interval

BY_NAME = {way.name: way for way in WAYS}


def width(name, length, field="of_all"):
    low, high = getattr(errors(BY_NAME[name], length), field)
    return high - low


def test_factors_are_those_of_the_slide():
    a, b = factors(1024)
    assert a.shape == (100, 1024) and b.shape == (1024, 100)
    assert a.min() >= 0 and a.mean() == pytest.approx(1, abs=0.02)
    assert b.mean() == pytest.approx(0, abs=0.02)
    assert b.var() == pytest.approx(1, abs=0.02)


def test_an_interval_holds_99_percent():
    values = np.random.RandomState(0).permutation(10_000)
    low, high = interval(values)
    assert ((values >= low) & (values <= high)).mean() == pytest.approx(0.99, abs=1e-3)


def test_numbers_of_bfloat16():
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159, 0], np.float32)
    np.testing.assert_array_equal(
        benchmark.as_bfloat16(x), np.array([1, 1, 1 + 2**-6, -3.140625, 0], np.float32)
    )


@pytest.mark.parametrize("length", [32, 1024])
def test_float32_sums_are_better(length):
    assert width("float16, float16", length) > 3 * width(CORE, length)
    # Sums in float32 add nothing to the rounding of the factors.
    assert width(CORE, length, "of_sums") < 1e-2 * width(CORE, length)
    # bfloat16 has 8 times the spacing of float16.
    assert width("bfloat16, float32", length) / width(CORE, length) == pytest.approx(
        8, rel=0.15
    )


def test_errors_of_float16_sums_grow_faster_than_those_of_their_factors():
    growth = {
        name: width(name, 1024) / width(name, 64) for name in ("float16, float16", CORE)
    }
    # Errors of the factors grow as the root of their number.
    assert growth[CORE] == pytest.approx(4, rel=0.2)
    assert growth["float16, float16"] > 10


def test_the_command_writes_a_result_and_a_picture(tmp_path, monkeypatch, capsys):
    output, picture = tmp_path / "result.txt", tmp_path / "picture.png"
    options = ["--lengths", "32", "64", "--output", str(output), "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", ["tensor_core_accuracy", *options])
    monkeypatch.setattr(benchmark, "command", lambda before: "the command")
    benchmark.main()
    text = output.read_text()
    assert capsys.readouterr().out.startswith(text)
    assert text.count("bfloat16, float32") == 4
    assert "with 64 terms the errors of 'float16, float32' are 5 times" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
