"""Losses of PyTorch that leave samples out or weigh them, in unequal microbatches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpi4py import MPI  # noqa: E402
from torch import nn  # noqa: E402

from pipeline import Pipeline  # noqa: E402
from torch_layers import TorchLoss, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
T = np.array([0, 1, 2, -100, -100, -100, -100, 1, 1, 0])
LOSSES = {
    "left out": (nn.CrossEntropyLoss(), T),
    "weighed": (nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.5])), T),
    "other label": (nn.CrossEntropyLoss(ignore_index=1), np.abs(T) % 3),
    "probabilities": (nn.CrossEntropyLoss(), X[:, :3] ** 2),
    "squares": (nn.MSELoss(), X[:, :3]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_as_of_the_undivided_minibatch(name):
    loss_of, t = LOSSES[name]
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    loss = loss_of(net(torch.from_numpy(X)), torch.from_numpy(t))
    loss.backward()
    model = from_torch(nn.Sequential(net))
    options = {"lossfun": TorchLoss(loss_of), "accfun": None, "n_microbatches": 3}
    with Pipeline(model, MPI.COMM_SELF, **options) as pipe:
        found = pipe.step(X, t)["loss"]
        assert found == pytest.approx(loss.item(), rel=1e-5)
        assert pipe.evaluate(X, t)["loss"] == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(
        model[0].weight.grad, net.weight.grad.numpy(), rtol=1e-4, atol=1e-6
    )


def test_a_sum_is_refused():
    with pytest.raises(ValueError, match="reduction is 'sum'"):
        TorchLoss(nn.MSELoss(reduction="sum"))
