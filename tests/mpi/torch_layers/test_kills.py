"""Killed runs of PyTorch's modules and optimizers end as one that nobody disturbed.

``KILLS=100 python -m pytest -m matrix -s tests/mpi/torch_layers/test_kills.py``
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.support.killed_training import N_ITERATIONS, check_kills, finish  # noqa: E402
from tests.support.snapshot_training import trainer_of  # noqa: E402
from torch_layers import TorchOptimizer, from_torch  # noqa: E402


def train(comm, out):
    np.random.seed(3)
    torch.manual_seed(3)
    model = from_torch(
        nn.Sequential(
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.3),
            nn.Linear(8, 8),
            nn.Tanh(),
            nn.Linear(8, 4),
        )
    )
    optimizer = TorchOptimizer(torch.optim.AdamW, lr=0.01)
    trainer, _ = trainer_of(comm, out, (N_ITERATIONS, "iteration"), model, optimizer)
    finish(comm, trainer)


@pytest.mark.parametrize(
    "n_kills",
    [2, pytest.param(int(os.environ.get("KILLS") or 5), marks=pytest.mark.matrix)],
)
@pytest.mark.filterwarnings("ignore:a snapshot is passed over")
def test_killed_again_and_again(tmp_path, n_kills):
    check_kills(train, tmp_path, n_kills)
