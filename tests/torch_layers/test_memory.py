"""The memory that a pipeline of PyTorch's layers takes, in a process of its own."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os

import chainer
import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from divisible import Divisible
from pipeline import Pipeline
from torch_layers import TorchLayer


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


n = 4096
x = np.ones((2, n), np.float32)
layer, lossfun = TorchLayer(nn.Linear(n, n, bias=False)), TorchLayer(nn.MSELoss())
options = {"n_microbatches": 2, "lossfun": lossfun, "accfun": None}
with Pipeline(Divisible(layer), MPI.COMM_SELF, **options) as pipe:
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    before = resident_bytes()
    for _ in range(3):
        pipe.step(x, x)
        optimizer.update()
    print((resident_bytes() - before) / layer.weight.array.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="not on Linux")
def test_steps_take_the_memory_of_the_gradients_and_no_copy_of_the_parameters():
    # With its kernels a process keeps the memory that it frees.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CHAINER_KERNELS": "0"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert 0.9 < float(result.stdout) < 1.5
