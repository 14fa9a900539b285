"""The backward in two halves: every gradient once, and the same bits."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd.graph import get_gradient_edge  # noqa: E402

from torch_layers.halves import Graph, first_half, whole  # noqa: E402


class Doubled(torch.autograd.Function):
    n_calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 2 * x * weight

    @staticmethod
    def backward(ctx, gy):
        Doubled.n_calls += 1
        x, weight = ctx.saved_tensors
        return 2 * gy * weight, (2 * gy * x).sum(0)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x):
        return self.last(Doubled.apply(self.first(x), self.weight))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.linspace(-1, 1, 6))
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        h = x + self.position
        h = h + self.two(torch.tanh(self.one(self.norm(h))))
        return h @ self.one.weight, self.position * 2


class Hooked(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.one, self.two, self.times = nn.Linear(6, 6), nn.Linear(6, 6), times

    def forward(self, x):
        h = self.one(x)
        h.register_hook(lambda g: self.times.append(1) or g * 0.5)
        return self.two(h)


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.bn(self.conv(x[:, None])).relu().flatten(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4)

    def forward(self, x):
        return self.lstm(x.reshape(5, 3, 2))[0]


MODULES = {
    "linear": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "custom": Custom,
    "tied": Tied,
    "residual": Residual,
    "hooked": lambda: Hooked([]),
    "picture": Picture,
    "recurrent": Recurrent,
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True),
}


def graph_of(module):
    torch.manual_seed(1)
    x = torch.randn(5, 6, requires_grad=True)
    ys = module(x)
    ys = ys if isinstance(ys, tuple) else (ys,)
    gradients = [torch.randn_like(y) for y in ys]
    has_hooks = isinstance(module, Hooked)
    return Graph(tuple(map(get_gradient_edge, ys)), has_hooks), x, gradients


@pytest.mark.parametrize("name", MODULES)
def test_two_halves_are_the_whole_bit_for_bit(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    weights = [*module.parameters()]
    graph, x, gradients = graph_of(module)
    expected = whole(graph, [x, *weights], gradients)
    graph, x, gradients = graph_of(module)
    (gx,), half = first_half(graph, [x], weights, gradients)
    found = [gx, *half.run()]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


def test_functions_of_the_user_run_once_and_lose_nothing():
    """pytorch #166577 and #174017."""
    module = Custom()
    graph, x, gradients = graph_of(module)
    Doubled.n_calls = 0
    _, half = first_half(graph, [x], [*module.parameters()], gradients)
    found = half.run()
    assert Doubled.n_calls == 1
    assert all(gradient is not None for gradient in found)


def test_hooks_run_once():
    """pytorch #185331: a buffer collects no hooks, and each runs once."""
    times = []
    module = Hooked(times)
    graph, x, gradients = graph_of(module)
    _, half = first_half(graph, [x], [*module.parameters()], gradients)
    half.run()
    assert times == [1]


def test_the_second_half_computes_weights_only():
    """Each product is computed once: pytorch #174017."""
    module = MODULES["mlp"]()
    graph, x, gradients = graph_of(module)

    def products(run):
        with torch.profiler.profile() as profile:
            result = run()
        names = [event.name for event in profile.events()]
        return result, names.count("aten::mm")

    weights = [*module.parameters()]
    (_, half), first = products(lambda: first_half(graph, [x], weights, gradients))
    _, second = products(half.run)
    assert (first, second) == (2, 2)
