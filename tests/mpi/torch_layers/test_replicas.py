"""Replicas of layers of PyTorch stay equal, running averages included."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from data_parallel import Grid, create_multi_node_optimizer  # noqa: E402
from pipeline import Pipeline  # noqa: E402
from tests.support.mpiexec import assert_on_ranks  # noqa: E402
from torch_layers import TorchLoss, TorchOptimizer, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
T = np.arange(12) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def replicas(comm):
    half = slice(6 * comm.rank, 6 * comm.rank + 6)
    options = {"lossfun": TorchLoss(nn.CrossEntropyLoss()), "accfun": None}
    with Grid(comm, 1) as grid:
        stage = from_torch(net()).divide()
        inner = TorchOptimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
        optimizer = create_multi_node_optimizer(inner, grid.data).setup(stage)
        with Pipeline(stage, grid, n_microbatches=2, **options) as pipe:
            for _ in range(3):
                pipe.step(X[half], T[half])
                optimizer.update()
        state = {k: v.clone().numpy() for k, v in stage.torch_state_dict().items()}
        first, second = comm.allgather(state)
    for key, array in first.items():
        np.testing.assert_array_equal(second[key], array, key)
    assert int(first["1.num_batches_tracked"]) == 3
    assert first["1.running_mean"].any()


def test_replicas_move_their_averages_alike():
    assert_on_ranks(2, replicas)
