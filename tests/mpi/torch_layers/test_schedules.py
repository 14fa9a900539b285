"""Layers of PyTorch in pipelines train as a plain loop of PyTorch, bit for bit."""

import functools

import chainer
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pipeline import Pipeline  # noqa: E402
from tests.support.equivalence import stages_of_rank  # noqa: E402
from tests.support.mpiexec import assert_on_ranks  # noqa: E402
from torch_layers import TorchLayer, from_torch  # noqa: E402

N_STEPS, N_MICROBATCHES = 3, 4


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n))

    def forward(self, x):
        return torch.relu(x + self.body(x))


class LastOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Block(4), Block(4),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


def encoder():
    return nn.Sequential(
        nn.Embedding(11, 8),
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(20, 5),
    )


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def tied():
    """An encoder whose scores have the weights of its embedding."""
    embedding, scores = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
    scores.weight = embedding.weight
    return nn.Sequential(
        embedding,
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        Mean(),
        nn.LayerNorm(8),
        scores,
    )


def lstm():
    return nn.Sequential(
        nn.Linear(6, 6), nn.Tanh(), LastOutput(), nn.Linear(8, 8), nn.Linear(8, 5)
    )


def batches(name):
    rng = np.random.default_rng(0)
    shapes = {"cnn": (2, 8, 8), "encoder": (5,), "tied": (5,), "lstm": (4, 6)}
    for _ in range(N_STEPS):
        x = rng.normal(size=(8, *shapes[name])).astype(np.float32)
        if name in ("encoder", "tied"):
            x = rng.integers(0, 11, (8, 5))
        yield x, rng.integers(0, 5, 8)


MODULES = {"cnn": cnn, "encoder": encoder, "tied": tied, "lstm": lstm}


# Schedules in a row are compared with the same loop.
@functools.cache
def plain_loop(name):
    """Trains by PyTorch alone; only the update is Chainer's."""
    torch.manual_seed(0)
    net, loss_of = MODULES[name](), nn.CrossEntropyLoss()
    layer = TorchLayer(net)
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(layer)
    losses = []
    for x, t in batches(name):
        net.zero_grad()
        total = 0.0
        for i in range(0, 8, 2):
            part = torch.from_numpy(x[i : i + 2])
            loss = loss_of(net(part), torch.from_numpy(t[i : i + 2]))
            loss.backward(torch.tensor(0.25))
            total += loss.item() / N_MICROBATCHES
        for path, param in layer.namedparams():
            param.grad = net.get_parameter(path[1:]).grad.numpy()
        optimizer.update()
        losses.append(total)
    return losses, net.state_dict()


def train(comm, name, cuts, schedule, recompute="never"):
    expected, state = plain_loop(name)
    torch.manual_seed(0)
    model = from_torch(MODULES[name]())
    if recompute == "layers":
        marked = type(model)()
        for layer in model:
            marked.append(layer, recompute=True)
        marked.chain_names = model.chain_names
        model = marked
    numbers = stages_of_rank(comm, len(cuts) - 1, schedule)
    stages = [model.divide(cuts[i], cuts[i + 1]) for i in numbers]
    optimizers = [chainer.optimizers.MomentumSGD(0.1).setup(each) for each in stages]
    losses = []
    with Pipeline(
        stages,
        comm,
        n_microbatches=N_MICROBATCHES,
        schedule=schedule,
        lossfun=TorchLayer(nn.CrossEntropyLoss()),
        accfun=None,
        recompute="never" if recompute == "layers" else recompute,
        timeout=120,
    ) as pipe:
        for x, t in batches(name):
            losses.append(pipe.step(x, t)["loss"])
            for optimizer in optimizers:
                optimizer.update()
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for stage in stages:
        for path, param in stage.namedparams():
            theirs = state[model.chain_names.in_chain(path)].numpy()
            if name == "tied":
                # The two gradients are added in another order.
                np.testing.assert_allclose(param.array, theirs, 1e-5, 1e-6, path)
            else:
                np.testing.assert_array_equal(param.array, theirs, path)


def all_schedules(comm, name):
    n = len(from_torch(MODULES[name]()))
    uniform = [round(i * n / comm.size) for i in range(comm.size + 1)]
    for schedule in ("gpipe", "1f1b", "zb_h1"):
        train(comm, name, uniform, schedule)
    if 2 * comm.size <= n:
        many = [round(i * n / (2 * comm.size)) for i in range(2 * comm.size + 1)]
        train(comm, name, many, "zb_v")
    for schedule, recompute in CHECKPOINTS.items():
        train(comm, name, uniform, schedule, recompute)


CHECKPOINTS = {"1f1b": "always", "gpipe": "except_last", "zb_h1": "layers"}
MATRIX = pytest.mark.matrix


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    "n_ranks", [pytest.param(1, marks=MATRIX), 2, pytest.param(3, marks=MATRIX)]
)
def test_as_a_plain_loop_of_pytorch(n_ranks, name):
    assert_on_ranks(n_ranks, all_schedules, name)
