"""The example with layers of PyTorch learns."""

import re

import pytest

from tests.support.mpiexec import mpiexec

pytest.importorskip("torch")


def test_the_example_learns():
    result = mpiexec(2, ["examples/torch_modules/train.py"])
    assert result.returncode == 0, result.stdout
    accuracies = re.findall(r"test accuracy ([\d.]+)%", result.stdout)
    assert len(accuracies) == 5
    assert float(accuracies[-1]) > 90
