"""Packages of extras."""

import argparse

import pytest

from benchmarks.common.extras import require


def test_a_missing_package_is_named_with_the_command_that_installs_it(capsys):
    parser = argparse.ArgumentParser()
    require(parser, "numpy", "none")
    with pytest.raises(SystemExit):
        require(parser, "no_such_package", "benchmarks")
    text = capsys.readouterr().err
    assert "no_such_package is not installed" in text
    assert "pip install --editable '.[benchmarks]'" in text
