"""Snapshots and moves of layers of PyTorch, with PyTorch's optimizers."""

import shutil
import tempfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot  # noqa: E402
from pipeline.exports.formats import export  # noqa: E402
from tests.support.mpiexec import assert_on_ranks  # noqa: E402
from torch_layers import TorchLayer, TorchOptimizer, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(8, 2, 6, 6)).astype(np.float32)
T = np.arange(8) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16, momentum=None),
        nn.Linear(16, 3),
    )


def build():
    return from_torch(net())


class Run:
    def __init__(self, comm, cut):
        cuts = [0, cut, 8] if comm.size == 2 else [0, 8]
        self.stage = build().divide(cuts[comm.rank], cuts[comm.rank + 1])
        self.optimizer = TorchOptimizer(torch.optim.AdamW, lr=0.02).setup(self.stage)
        kind = torch.optim.lr_scheduler.ExponentialLR
        self.scheduler = self.optimizer.scheduler(kind, gamma=0.9)
        self.pipe = Pipeline(
            self.stage,
            comm,
            n_microbatches=4,
            schedule="zb_h1" if comm.size > 1 else "1f1b",
            lossfun=TorchLayer(nn.CrossEntropyLoss()),
            accfun=None,
            timeout=120,
        )

    def train(self, n_steps):
        losses = []
        for _ in range(n_steps):
            losses.append(self.pipe.step(X, T)["loss"])
            self.optimizer.update()
            self.scheduler.step()
        return losses

    def state(self):
        """The state of the own layers, in arrays of its own."""
        state = self.stage.torch_state_dict()
        return {key: tensor.clone().numpy() for key, tensor in state.items()}


def resumed_and_moved(comm):
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    run = Run(comm, 3)
    run.train(3)
    save_snapshot(f"{folder}/3", run.pipe, run.optimizer)
    losses = run.train(3)
    expected = {}
    for state in comm.allgather(run.state()):
        expected.update(state)
    assert int(expected["1.num_batches_tracked"]) == 6

    def check(other, its_losses):
        assert its_losses == losses
        for key, array in other.state().items():
            np.testing.assert_array_equal(array, expected[key], key)

    for cut in (3, 6):
        other = Run(comm, cut)
        load_snapshot(f"{folder}/3", other.pipe, other.optimizer)
        check(other, other.train(3))
    # Layers that move while the run goes on.
    other = Run(comm, 3)
    its = other.train(3)
    assert its
    rebalance(other.pipe, other.optimizer, [0, 6, 8], build)
    check(other, other.train(3))
    if comm.rank == 0:
        serial = build()
        export(f"{folder}/3", f"{folder}/model.pt", "torch", serial, X)
        module = net()
        module.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
        shutil.rmtree(folder)


def test_a_run_resumed_on_another_cut_or_moved_goes_on_bit_for_bit():
    assert_on_ranks(2, resumed_and_moved)
