"""Ranks draw the same numbers."""

import pytest

from tests.support.ported import added, training_script


@pytest.mark.parametrize("seed, is_new", [("np.random.seed(3)", False), ("pass", True)])
def test_a_script_without_a_seed_gets_one(seed, is_new):
    source = training_script().replace("np.random.seed(0)", seed)
    lines = added(source)
    assert ("numpy.random.seed(0)  # alike on every rank" in lines) == is_new
    assert ("import numpy" in lines) == is_new


def test_a_seed_of_a_function_is_its_first_line():
    body = training_script().replace("np.random.seed(0)", "''' Trains. '''")
    source = "def main():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    lines = added(source)
    assert lines.count("numpy.random.seed(0)  # alike on every rank") == 1
