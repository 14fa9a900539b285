"""Modules of PyTorch as lists of layers, and their names."""

import copy
import pickle

import chainer
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from torch_layers import TorchLayer, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)


class Net(nn.Module):
    """A stem, a residual block in the forward, a view by sizes, and a head."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
        self.left, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.full((6,), 0.5))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        h = self.features(x)
        h = torch.relu(self.norm(self.left(h)) + h * self.scale)
        h = h.view(h.size(0), 2, -1).mean(1)
        return self.head(h)


def test_a_forward_is_cut_where_one_value_is_left():
    torch.manual_seed(0)
    net = Net()
    expected = net(torch.from_numpy(X)).detach().numpy()
    model = from_torch(net)
    # Two features; the block, relu, the view and its mean, the head.
    assert len(model) == 7
    assert model[0].module is net.features[0]
    np.testing.assert_array_equal(model(X).array, expected)
    assert {model.chain_names.in_chain(path) for path, _ in model.namedparams()} == {
        name for name, _ in net.named_parameters()
    }
    state, theirs = model.torch_state_dict(), net.state_dict()
    assert {*state} == {*theirs}
    for key, tensor in theirs.items():
        assert state[key].data_ptr() == tensor.data_ptr()
    for _, param in model.namedparams():
        param.array = np.full_like(param.array, 7)
    found = net.state_dict()
    for name, _ in net.named_parameters():
        assert (found[name] == 7).all(), name
    assert model.chain_names.in_layers("features.0.bias") == "/0/bias"
    with pytest.raises(KeyError, match="belongs to none"):
        model.chain_names.in_layers("other.bias")


def test_the_last_layer_may_return_several():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 2), nn.Linear(6, 3)

        def forward(self, x, y):
            return self.a(x), self.b(y)

    model = from_torch(Two())
    assert len(model) == 1
    first, second = model[0](X, X)
    assert (first.shape, second.shape) == ((3, 2), (3, 3))


def test_what_cannot_be_followed_is_refused():
    class Decides(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Drops(nn.Module):
        def forward(self, x):
            return functional.dropout(x, 0.5, training=self.training)

    class Adds(nn.Module):
        def forward(self, x):
            return x + 1 if self.training else x

    with pytest.raises(ValueError, match=r"from_torch\(Decides\): its forward cannot"):
        from_torch(Decides())
    for module in Drops(), Adds():
        message = r"the forward reads self.training, before or at (dropout|add)"
        with pytest.raises(ValueError, match=message):
            from_torch(module)
        assert module.training
    hooked = Net()
    hooked.register_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match="the module has hooks"):
        from_torch(hooked)


def test_tensors_that_are_replaced_in_the_module_are_those_of_its_layers():
    torch.manual_seed(0)
    net = Net()
    model = from_torch(net)
    model(X)
    new = {
        key: torch.randn_like(tensor)
        for key, tensor in Net().state_dict().items()
        if tensor.is_floating_point()
    }
    new["norm.running_var"] = torch.rand(6) + 1

    def check():
        with chainer.using_config("train", False):
            found = model(X).array
        expected = copy.deepcopy(net).eval()(torch.from_numpy(X)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    net.load_state_dict(new, strict=False, assign=True)
    for key, param in model.namedparams():
        name = model.chain_names.in_chain(key)
        np.testing.assert_array_equal(param.array, new[name].numpy())
    check()
    # A layer made by a trace has this parameter beside its modules.
    net.scale = nn.Parameter(torch.full((6,), 3.0))
    check()
    params = {param.name: param for param in model.params()}
    params["scale"].array = np.full(6, 9, np.float32)
    assert (net.state_dict()["scale"] == 9).all()
    check()


class Doubled(nn.Sequential):
    """A list of modules with a forward of its own."""

    def forward(self, x):
        return super().forward(x) * 2


def test_a_list_with_a_forward_of_its_own_is_traced():
    torch.manual_seed(0)
    net = Doubled(nn.Linear(6, 6), nn.ReLU())
    expected = net(torch.from_numpy(X)).detach().numpy()
    model = from_torch(net)
    np.testing.assert_array_equal(model(X).array, expected)
    assert len(model) == 3


@pytest.mark.parametrize("kind", ["list", "forward"])
@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_full_backward_hook"]
)
def test_a_list_with_hooks_is_one_layer_which_calls_them(kind, register):
    torch.manual_seed(0)
    net = Net() if kind == "forward" else nn.Sequential(nn.Linear(6, 6), Net().features)
    inner = net.features if kind == "forward" else net[1]
    calls = []
    getattr(inner, register)(lambda *args: calls.append(type(args[-1])))
    model = from_torch(net)
    assert not calls and [layer.module for layer in model].count(inner) == 1
    chainer.functions.sum(model(chainer.Variable(X))).backward()
    assert calls in ([torch.Tensor], [tuple])
    getattr(net, register)(print)
    with pytest.raises(ValueError, match="the module has hooks, which layers of its"):
        from_torch(net)


def test_layers_of_both_kinds_compute_as_chainers_alone():
    np.random.seed(0)
    links = [chainer.links.Linear(6, 6) for _ in range(3)]
    model = from_torch(nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))))
    for link, layer in zip(links, model):
        layer.weight.array[...] = link.W.array
        layer.bias.array[...] = link.b.array
    from divisible import Divisible

    twin = Divisible(links[0], chainer.functions.tanh, links[1], links[2])
    mixed = Divisible(model[0], chainer.functions.tanh, links[1].copy("copy"), model[2])
    for each in (twin, mixed):
        each.cleargrads()
        chainer.functions.sum(each(X) ** 2).backward()
    np.testing.assert_allclose(mixed(X).array, twin(X).array, rtol=1e-5, atol=1e-6)
    pairs = [(links[0], model[0]), (links[2], model[2])]
    for a, b in [(pair[0].W, pair[1].weight) for pair in pairs]:
        np.testing.assert_allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_an_input_in_place_stays_for_the_layer_before():
    model = from_torch(nn.Sequential(nn.Sigmoid(), nn.ReLU(inplace=True)))
    x = chainer.Variable(X)
    chainer.functions.sum(model(x)).backward()
    s = 1 / (1 + np.exp(-X))
    np.testing.assert_allclose(x.grad, s * (1 - s), rtol=1e-4)


def test_one_module_twice_is_one_layer():
    linear = nn.Linear(6, 6)
    model = from_torch(nn.Sequential(linear, nn.Tanh(), linear))
    assert len(model) == 3
    assert len([*model.params()]) == 2
    chainer.functions.sum(model(X)).backward()
    h = torch.tanh(linear(torch.from_numpy(X)))
    linear(h).sum().backward()
    np.testing.assert_allclose(
        model[0].weight.grad, linear.weight.grad.numpy(), rtol=1e-4
    )


def test_printing_names_the_module():
    assert str(TorchLayer(nn.Linear(2, 3))).startswith("TorchLayer(module=Linear(in_f")


class InPlace(nn.Module):
    """Works in place by statements, whose results nobody uses."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, shift=None):
        h = self.first(x)
        h.tanh_()
        h = self.last(h)
        self.relu(h)
        return functional.relu(h - 0.1, inplace=True) * torch.tensor(2.0)


def test_statements_in_place_and_default_arguments_stay():
    net = InPlace()
    expected = net(torch.from_numpy(X))
    expected.sum().backward()
    model = from_torch(net)
    y = model(X)
    np.testing.assert_array_equal(y.array, expected.detach().numpy())
    chainer.functions.sum(y).backward()
    for path, param in model.namedparams():
        theirs = net.get_parameter(model.chain_names.in_chain(path)).grad
        np.testing.assert_allclose(param.grad, theirs.numpy(), rtol=1e-5)
    assert len(model) == 2
    assert {*model.torch_state_dict()} == {*net.state_dict()}
    for layer in model:
        for copied in copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)):
            assert {*copied.module.state_dict()} == {*layer.module.state_dict()}
            for path, param in copied.namedparams():
                param.array = np.full_like(param.array, 7)
                assert (copied.module.state_dict()[path[1:]] == 7).all()
