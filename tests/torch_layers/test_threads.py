"""Both libraries in one process, with the threads that the environment gives."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import torch
from torch import nn

from divisible import Divisible
from torch_layers import TorchLayer

np.random.seed(0)
torch.manual_seed(0)
layers = [L.Convolution2D(3, 8, 3), TorchLayer(nn.Conv2d(8, 8, 3)), F.relu]
model = Divisible(*layers, L.Linear(8 * 144, 32), TorchLayer(nn.Linear(32, 4)))
x = np.random.rand(16, 3, 16, 16).astype(np.float32)
model(x)
print(model[1].library_threads)
for _ in range(3):
    model.cleargrads()
    F.softmax_cross_entropy(model(x), np.zeros(16, np.int32)).backward()
print(sum(float(abs(param.grad).sum()) for param in model.params()))
"""


def run(n):
    environment = {**os.environ, "OMP_NUM_THREADS": str(n)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    n_threads, total = result.stdout.split()
    return int(n_threads), float(total)


def test_threads_are_those_of_the_environment_and_results_the_same():
    (one, expected), (two, found) = run(1), run(2)
    assert (one, two) == (1, 2)
    assert found == pytest.approx(expected, rel=1e-4)
