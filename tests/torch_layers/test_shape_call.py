"""The memory of modules from shapes alone is that of a measurement."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from divisible import Divisible, deferred_init, profile, trace_memory  # noqa: E402
from divisible.schedules import one_f_one_b  # noqa: E402
from torch_layers import TorchLayer, TorchLoss, TorchOptimizer, from_torch  # noqa: E402


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n))

    def forward(self, x):
        return torch.relu(x + self.body(x))


class LastOutput(nn.Module):
    def __init__(self, n, n_units, kind=nn.GRU):
        super().__init__()
        self.body = kind(n, n_units, batch_first=True)

    def forward(self, x):
        return self.body(x)[0][:, -1]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gy):
        x, weight = ctx.saved_tensors
        return gy * weight, (gy * x).sum(0)


class Custom(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        return Scaled.apply(x, self.weight)


def cnn():
    # As in examples/torch_modules, with a residual block.
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        Block(16),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, 10),
    )


def encoder():
    return nn.Sequential(
        nn.Embedding(11, 16),
        nn.TransformerEncoderLayer(16, 2, 64, 0.1, batch_first=True),
        nn.TransformerEncoderLayer(16, 2, 64, 0.1, batch_first=True),
        nn.Flatten(),
        nn.Linear(24 * 16, 10),
    )


def recurrent():
    return nn.Sequential(
        nn.Linear(6, 32), nn.Tanh(), LastOutput(32, 64), nn.LayerNorm(64),
        Custom(64), nn.GELU(), nn.Linear(64, 10),
    )  # fmt: skip


NETS = {
    "cnn": (cnn, (64,), np.float32),
    "encoder": (encoder, (24,), np.int64),
    "recurrent": (recurrent, (12, 6), np.float32),
}


@pytest.mark.parametrize("name", NETS)
def test_as_measured_also_before_the_weights_are_made(name):
    make, shape, dtype = NETS[name]
    x, t = np.zeros((16, *shape), dtype), np.zeros(16, np.int64)
    lossfun = TorchLoss(nn.CrossEntropyLoss())
    optimizer = TorchOptimizer(torch.optim.AdamW)
    model = from_torch(make())
    measured = profile(model, x, t, lossfun, optimizer=optimizer, repeat=1)
    with deferred_init(seed=0), torch.device("meta"):
        deferred = from_torch(make())
    for each in (model, deferred):
        traced = trace_memory(each, x, t, lossfun, optimizer=optimizer)
        assert not traced.unknown
        for column, tolerance in (
            ("parameter_bytes", 0),
            ("optimizer_bytes", 0),
            ("output_bytes", 0),
            ("activation_bytes", 0.1),
            # All that the graph keeps counts, and not what weights alone need.
            ("pending_bytes", 1),
        ):
            here, there = traced.column(column), measured.column(column)
            share = tolerance * there.sum()
            assert here == pytest.approx(there, rel=tolerance, abs=share), column
        whole = traced.rank_bytes([0, 3, len(each)], one_f_one_b(2, 4))
        assert min(whole) > 0
    assert deferred[-1].module.weight.is_meta
    # Two moments of each weight.
    n_bytes = measured.column("parameter_bytes").sum()
    state = measured.column("optimizer_bytes").sum()
    assert state == pytest.approx(2 * n_bytes, rel=0.05)


def test_a_model_larger_than_any_host_is_traced_without_memory():
    with deferred_init(seed=0), torch.device("meta"):
        model = from_torch(nn.Sequential(nn.Linear(10**6, 10**6), nn.ReLU()))
    x = np.broadcast_to(np.float32(0), (10**5, 10**6))
    optimizer = TorchOptimizer(torch.optim.Adam)
    first, _ = trace_memory(model, x, optimizer=optimizer).layers
    assert first.parameter_bytes == 4 * (10**12 + 10**6)
    assert first.optimizer_bytes == 2 * first.parameter_bytes + 8


def test_layers_of_both_kinds_and_several_values():
    class Two(nn.Module):
        def forward(self, x):
            return x.exp(), x > 0

    model = Divisible(
        chainer.links.Linear(8, 8),
        TorchLayer(Two()),
        lambda y, positive: F.where(positive, y, -y),
        TorchLayer(nn.Linear(8, 3), autocast=torch.bfloat16),
    )
    x, t = np.ones((32, 8), np.float32), np.zeros(32, np.int32)
    measured, traced = profile(model, x, t, repeat=1), trace_memory(model, x, t)
    assert not traced.unknown
    shapes = [layer.output for layer in traced.layers]
    assert shapes[1] == "(32, 8) float32, (32, 8) bool"
    assert shapes[-1] == "(32, 3) float32"
    here, there = (each.column("activation_bytes") for each in (traced, measured))
    assert here.sum() == pytest.approx(there.sum(), rel=0.1)


def test_nothing_of_a_module_changes():
    torch.manual_seed(0)
    norm, last = nn.BatchNorm1d(4), LastOutput(4, 4)
    modules = norm, nn.Dropout(0.5), nn.Unflatten(1, (2, 2)), nn.Linear(2, 4), last
    before = {k: v.clone() for k, v in nn.Sequential(*modules).state_dict().items()}
    tensors = [id(each) for module in modules for each in module.parameters()]
    state = torch.get_rng_state()
    model = Divisible(*map(TorchLayer, modules))
    memory = trace_memory(model, np.ones((3, 4), np.float32))
    assert not memory.unknown
    assert torch.equal(torch.get_rng_state(), state)
    assert [id(p) for module in modules for p in module.parameters()] == tensors
    for key, value in nn.Sequential(*modules).state_dict().items():
        assert torch.equal(value, before[key]), key
    # The weights that the recurrent module computes with are its own again.
    assert model(np.ones((3, 4), np.float32)).shape == (3, 4)


def test_an_lstm_is_known_or_said_to_be_unknown():
    x = np.ones((16, 12, 6), np.float32)
    model = Divisible(TorchLayer(LastOutput(6, 32, nn.LSTM)))
    traced = trace_memory(model, x)
    assert traced.layers[0].parameter_bytes == 4 * 4 * 32 * (6 + 32 + 2)
    if traced.unknown:
        # With oneDNN.
        assert "how much memory a recurrent layer keeps" in traced.unknown
    else:
        measured = profile(model, x, repeat=1).column("activation_bytes")
        assert traced.column("activation_bytes") == pytest.approx(measured, rel=0.1)


def test_a_module_that_reads_numbers_is_unknown():
    class Reading(nn.Module):
        def forward(self, x):
            return x[: int(x[0, 0].item())]

    model = Divisible(TorchLayer(nn.Linear(4, 4)), TorchLayer(Reading()))
    memory = trace_memory(model, np.ones((3, 4), np.float32))
    assert memory.unknown.startswith("shapes are unknown from layer 1 on: ")
    assert memory.unknown.endswith("Measure the layers, by divisible profile")
    assert memory.layers[0].held is not None
