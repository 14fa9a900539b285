"""Running averages that move once a minibatch, by all of its samples."""

import chainer
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpi4py import MPI  # noqa: E402
from torch import nn  # noqa: E402

from mixed_precision import MixedPrecision, to_float16  # noqa: E402
from pipeline import Pipeline  # noqa: E402
from torch_layers import TorchLayer, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(2, 3, size=(8, 3, 4, 4)).astype(np.float32)
T = np.zeros(8, np.int64)


class Twice(nn.Module):
    """Calls one normalization twice."""

    def __init__(self, momentum):
        super().__init__()
        self.bn = nn.BatchNorm2d(3, momentum=momentum)

    def forward(self, x):
        return self.bn(input=torch.relu(self.bn(x)))


def net(momentum):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm2d(3, momentum=momentum), nn.Flatten(), nn.Linear(48, 2)
    )


def options(**more):
    return {"lossfun": TorchLayer(nn.CrossEntropyLoss()), "accfun": None, **more}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_as_a_forward_of_the_whole_minibatch(momentum, recompute):
    whole, ours = net(momentum), net(momentum)
    model = from_torch(ours)
    if recompute:
        model._recomputed = [True] * len(model)
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=4, seed=1, **options()) as pipe:
        for _ in range(3):
            pipe.step(X, T)
            whole(torch.from_numpy(X))
        pipe.evaluate(X, T)
    assert int(ours[0].num_batches_tracked) == 3
    for name in ("running_mean", "running_var"):
        expected = getattr(whole[0], name).numpy()
        np.testing.assert_allclose(getattr(ours[0], name).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_two_calls_in_a_microbatch_move_twice(momentum):
    torch.manual_seed(0)
    whole, ours = Twice(momentum), Twice(momentum)
    model = from_torch(nn.Sequential(ours, nn.Flatten(), nn.Linear(48, 2)))
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=1, **options()) as pipe:
        for _ in range(2):
            pipe.step(X, T)
            whole(torch.from_numpy(X))
    assert int(ours.bn.num_batches_tracked) == 4
    for name in ("running_mean", "running_var"):
        expected = getattr(whole.bn, name).numpy()
        np.testing.assert_allclose(
            getattr(ours.bn, name).numpy(), expected, rtol=1e-4, atol=1e-6
        )


def test_normalizations_of_a_float16_model_stay_float32():
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(3), nn.GroupNorm(1, 3), nn.Flatten(), nn.LayerNorm(48)
    model = to_float16(from_torch(nn.Sequential(*norms, nn.Linear(48, 2))))
    types = {path: param.dtype.name for path, param in model.namedparams()}
    assert {path for path, name in types.items() if name == "float16"} == {
        "/4/weight",
        "/4/bias",
    }
    optimizer = MixedPrecision(chainer.optimizers.Adam(0.01)).setup(model)
    scale = optimizer.loss_scale
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, loss_scale=scale) as pipe:
        losses = []
        for _ in range(8):
            losses.append(pipe.step(X, T.astype(np.int32))["loss"])
            optimizer.update()
    assert losses[-1] < losses[0]


def test_alone_it_moves_as_in_pytorch():
    whole, layer = nn.BatchNorm2d(3), TorchLayer(nn.BatchNorm2d(3))
    whole(torch.from_numpy(X))
    layer(X)
    assert torch.equal(layer.module.running_mean, whole.running_mean)
    np.testing.assert_array_equal(layer.running_mean, whole.running_mean.numpy())


def test_an_error_within_leaves_the_module_as_it_was():
    layer = TorchLayer(nn.BatchNorm1d(6))
    seen = []
    with chainer.using_config("train", True), pytest.raises(RuntimeError):
        from torch_layers.norms import collecting

        with collecting(lambda *each: seen.append(each)):
            layer.module(torch.ones(4, 5))
    assert not seen
    assert layer.module.momentum == 0.1
    layer(np.random.rand(4, 6).astype("f"))
    assert layer.module.running_mean.any()
