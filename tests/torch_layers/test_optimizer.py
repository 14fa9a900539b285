"""PyTorch's optimizers with the face of Chainer's."""

import copy
import pickle

import chainer
import chainer.links as L
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402

from divisible.planning.optimizer_state import state_bytes  # noqa: E402
from mixed_precision import MixedPrecision  # noqa: E402
from torch_layers import TorchLayer, TorchOptimizer  # noqa: E402

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
KINDS = {
    optim.SGD: {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    optim.Adam: {"lr": 0.01, "amsgrad": True},
    optim.AdamW: {"lr": 0.01, "weight_decay": 0.1},
    optim.NAdam: {"lr": 0.01},
    optim.RAdam: {"lr": 0.01},
    optim.Adagrad: {"lr": 0.1},
    optim.Adadelta: {"lr": 0.5},
    optim.Adamax: {"lr": 0.01},
    optim.RMSprop: {"lr": 0.01, "momentum": 0.5, "centered": True},
    optim.Rprop: {"lr": 0.01},
    optim.ASGD: {"lr": 0.01},
    optim.Adafactor: {"lr": 0.01},
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def step(layer, optimizer):
    layer.cleargrads()
    chainer.functions.sum(layer(X) ** 2).backward()
    optimizer.update()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_as_pytorch_bit_for_bit_also_after_a_load(kind, tmp_path):
    plain, layer = net(), TorchLayer(net())
    theirs = kind(plain.parameters(), **KINDS[kind])
    ours = TorchOptimizer(kind, **KINDS[kind]).setup(layer)

    def compare():
        for (name, a), b in zip(plain.named_parameters(), layer.module.parameters()):
            assert torch.equal(a, b), name

    def both(optimizer, layer):
        theirs.zero_grad()
        (plain(torch.from_numpy(X)) ** 2).sum().backward()
        # The same gradients: Chainer's square may differ in its last bit.
        for (name, p), (path, param) in zip(
            sorted(plain.named_parameters()), sorted(layer.namedparams())
        ):
            assert path == f"/{name}"
            param.grad = p.grad.numpy().copy()
        theirs.step()
        optimizer.update()

    for _ in range(3):
        both(ours, layer)
    compare()
    # Predicted before any update, from shapes alone.
    held = sum(v.nbytes for p in layer.params() for v in p.update_rule.state.values())
    new = TorchOptimizer(kind, **KINDS[kind])
    assert state_bytes(new, layer.params()) == held
    chainer.serializers.save_npz(tmp_path / "optimizer.npz", ours)
    chainer.serializers.save_npz(tmp_path / "layer.npz", layer)
    layer = TorchLayer(net())
    ours = TorchOptimizer(kind, **KINDS[kind]).setup(layer)
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", ours)
    chainer.serializers.load_npz(tmp_path / "layer.npz", layer)
    for _ in range(2):
        both(ours, layer)
    compare()


class OneOfTwo(nn.Module):
    """Uses one of its parameters in a call, by the sign of its input."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(6))
        self.second = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * (self.first if x.sum() > 0 else self.second)


def test_a_parameter_without_a_gradient_is_updated_as_with_zeros():
    layer, plain = TorchLayer(OneOfTwo()), OneOfTwo()
    optimizer = TorchOptimizer(optim.SGD, lr=0.1, momentum=0.9).setup(layer)
    theirs = optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for x in (abs(X), -abs(X)):
        layer.cleargrads()
        theirs.zero_grad(set_to_none=False)
        chainer.functions.sum(layer(x)).backward()
        plain(torch.from_numpy(x)).sum().backward()
        optimizer.update()
        theirs.step()
    for name, param in plain.named_parameters():
        np.testing.assert_array_equal(getattr(layer, name).array, param.detach())


def test_schedulers_change_the_rate_and_are_saved(tmp_path):
    def make():
        layer = TorchLayer(net())
        optimizer = TorchOptimizer(optim.AdamW, lr=0.1).setup(layer)
        scheduler = optimizer.scheduler(
            optim.lr_scheduler.SequentialLR,
            schedulers=[
                optim.lr_scheduler.LinearLR(optimizer._head, 0.1, total_iters=3),
                optim.lr_scheduler.CosineAnnealingLR(optimizer._head, 10),
            ],
            milestones=[3],
        )
        return layer, optimizer, scheduler

    layer, optimizer, scheduler = make()
    rates = []
    for i in range(8):
        if i == 4:
            chainer.serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
        step(layer, optimizer)
        scheduler.step()
        rates.append(optimizer.lr)
    assert len(set(rates)) == 8
    layer, optimizer, scheduler = make()
    chainer.serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
    for expected in rates[4:]:
        step(layer, optimizer)
        scheduler.step()
        assert optimizer.lr == pytest.approx(expected)
    optimizer.scheduler(optim.lr_scheduler.ConstantLR)
    with pytest.raises(ValueError, match="saved with 1 schedulers, and has 2"):
        chainer.serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
    pytest.importorskip("h5py")
    chainer.serializers.save_hdf5(tmp_path / "optimizer.h5", optimizer)
    _, again, _ = make()
    again.scheduler(optim.lr_scheduler.ConstantLR)
    chainer.serializers.load_hdf5(tmp_path / "optimizer.h5", again)
    assert again.lr == optimizer.lr


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_a_copy_of_a_layer_has_the_state_of_its_optimizer(copied):
    layer = TorchLayer(net())
    optimizer = TorchOptimizer(optim.Adam, lr=0.1).setup(layer)
    step(layer, optimizer)
    other = copied(layer)
    step(layer, optimizer)
    other.cleargrads()
    chainer.functions.sum(other(X) ** 2).backward()
    for param in other.params():
        param.update()
    for key, tensor in layer.module.state_dict().items():
        assert torch.equal(other.module.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))]
)
def test_a_copy_of_an_optimizer_has_schedulers_of_its_own(copied):
    optimizer = TorchOptimizer(optim.AdamW, lr=0.1).setup(TorchLayer(net()))
    optimizer.scheduler(optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    step(optimizer.target, optimizer)
    other = copied(optimizer)
    other._schedulers[0].step()
    assert (optimizer.lr, other.lr) == (0.1, 0.05)
    other.lr = 0.1
    for each in (optimizer, other):
        step(each.target, each)
    for key, tensor in optimizer.target.module.state_dict().items():
        assert torch.equal(other.target.module.state_dict()[key], tensor), key


def test_chainers_links_hooks_and_rates():
    link = L.Linear(6, 3)
    optimizer = TorchOptimizer(optim.SGD, lr=0.1).setup(link)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1e-9))
    before = link.W.array.copy()
    step(link, optimizer)
    np.testing.assert_allclose(link.W.array, before, atol=1e-8)
    optimizer.remove_hook("GradientClipping")
    link.b.update_rule.hyperparam.lr = 0.0
    bias = link.b.array.copy()
    optimizer.lr = 0.2
    step(link, optimizer)
    assert (link.W.array != before).any()
    np.testing.assert_array_equal(link.b.array, bias)


def test_masters_of_float16_are_updated_as_by_chainers_own():
    layers = [TorchLayer(net().half()) for _ in range(2)]
    ours = TorchOptimizer(optim.AdamW, lr=0.1).setup(layers[0])
    ours.use_fp32_update()
    mixed = MixedPrecision(TorchOptimizer(optim.AdamW, lr=0.1), loss_scale=1)
    mixed.setup(layers[1])
    for optimizer, layer in zip((ours, mixed), layers):
        for _ in range(3):
            layer.cleargrads()
            chainer.functions.sum(layer(X.astype(np.float16))).backward(loss_scale=1)
            optimizer.update()
    states = [layer.module.state_dict() for layer in layers]
    for key, tensor in states[0].items():
        assert tensor.dtype == torch.float16
        assert torch.equal(states[1][key], tensor), key


def test_other_optimizers_are_refused():
    with pytest.raises(TypeError, match="needs a class of torch.optim"):
        TorchOptimizer(optim.LBFGS)
    with pytest.raises(TypeError, match="needs a class of torch.optim"):
        TorchOptimizer(optim.SGD(net().parameters(), 0.1))
