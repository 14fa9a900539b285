"""What users of torch.distributed.pipelining reported, one test for each."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from divisible import Divisible, pop, stash  # noqa: E402
from pipeline import Pipeline  # noqa: E402
from tests.support.mpiexec import assert_on_ranks  # noqa: E402
from torch_layers import TorchLayer, TorchOptimizer, from_torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
T = np.arange(12) % 3


class Scaled(torch.autograd.Function):
    n_calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gy):
        Scaled.n_calls += 1
        x, weight = ctx.saved_tensors
        return gy * weight, (gy * x).sum(0)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x):
        return Scaled.apply(x, self.weight)


def custom():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6), Custom(), nn.Linear(6, 6), nn.Sequential(Custom(), nn.Tanh()),
        nn.Linear(6, 3), nn.Identity(),
    )  # fmt: skip


def tied():
    torch.manual_seed(0)
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), last, nn.Tanh(), nn.Linear(6, 3))


def undivided(net, x=X, t=T):
    net.zero_grad()
    loss = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(t))
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in net.named_parameters()}


def stages_of(model, comm, schedule):
    n = len(model)
    if schedule == "zb_v":
        cuts = [round(i * n / (2 * comm.size)) for i in range(2 * comm.size + 1)]
        places = [comm.rank, 2 * comm.size - 1 - comm.rank]
    else:
        cuts = [round(i * n / comm.size) for i in range(comm.size + 1)]
        places = [comm.rank]
    return [model.divide(cuts[i], cuts[i + 1]) for i in places]


def check_gradients(comm, net, schedule, n_microbatches=3):
    loss, grads = undivided(net)
    model = from_torch(net)
    stages = stages_of(model, comm, schedule)
    options = {"lossfun": TorchLayer(nn.CrossEntropyLoss()), "accfun": None}
    with Pipeline(
        stages, comm, n_microbatches=n_microbatches, schedule=schedule, **options
    ) as pipe:
        # On several ranks the first step runs its backwards twice.
        pipe.step(X, T)
        Scaled.n_calls = 0
        found = pipe.step(X, T)["loss"]
        np.testing.assert_allclose(found, loss, rtol=1e-5)
        for stage in stages:
            for path, param in stage.namedparams():
                name = model.chain_names.in_chain(path)
                np.testing.assert_allclose(
                    param.grad, grads[name], rtol=1e-4, atol=1e-6, err_msg=name
                )


def custom_functions(comm):
    for schedule in ("1f1b", "zb_h1", "zb_v"):
        check_gradients(comm, custom(), schedule)
        # Each function once for each microbatch.
        assert comm.allreduce(Scaled.n_calls) == 2 * 3


def test_gradients_of_custom_functions_are_there_and_computed_once():
    """pytorch #166577 and #174017."""
    assert_on_ranks(2, custom_functions)


def ties(comm):
    for schedule in ("1f1b", "zb_h1", "zb_v"):
        check_gradients(comm, tied(), schedule)


def test_tied_weights_get_both_gradients():
    """pytorch #180952."""
    assert_on_ranks(2, ties)


class Watching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.n_calls = nn.Linear(6, 6), 0

    def count(self, gradient):
        self.n_calls += 1

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self.count)
        return self.linear(x)


def hooks(comm):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Watching(), nn.Linear(6, 3))
    watching = net[2]
    for schedule in ("1f1b", "zb_h1"):
        stage = from_torch(net).divide(2 * comm.rank, 2 * comm.rank + 2)
        options = {"lossfun": TorchLayer(nn.CrossEntropyLoss()), "accfun": None}
        with Pipeline(
            stage, comm, n_microbatches=3, schedule=schedule, **options
        ) as pipe:
            for _ in range(3):
                watching.n_calls = 0
                pipe.step(X, T)
                assert watching.n_calls == (3 if comm.rank else 0)


def test_hooks_of_received_tensors_do_not_accumulate():
    """pytorch #185331."""
    assert_on_ranks(2, hooks)


def six_constraints(comm):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6))
    head = nn.Linear(6, 3)
    model = Divisible(
        stash("x"),
        *from_torch(net),
        lambda h: (h, (h.array > 0).astype(np.int32)),
        lambda h, signs: h * signs.astype(np.float32),
        pop("x", F.add),
        TorchLayer(head),
    )
    n = len(model)
    stage = model.divide(*[(0, 3), (3, n)][comm.rank])
    optimizer = TorchOptimizer(torch.optim.AdamW, lr=0.01).setup(stage)
    options = {"lossfun": TorchLayer(nn.CrossEntropyLoss()), "accfun": None}
    with Pipeline(stage, comm, n_microbatches=2, schedule="zb_h1", **options) as pipe:
        # Before the first step, and of another size.
        first = pipe.evaluate(X[:7], T[:7])["loss"]
        assert np.isfinite(first)
        # Any batch, and a smaller one at the end.
        losses = []
        for size in (12, 11, 5, 12, 12):
            losses.append(pipe.step(X[:size], T[:size])["loss"])
            optimizer.update()
        assert losses[-1] < losses[0]
        y = pipe.predict(X[:5])
        if y is not None:
            assert y.shape == (5, 3)


def test_six_constraints_of_its_documentation():
    """Batches of any size, integers and arrays between stages, and skips."""
    assert_on_ranks(2, six_constraints)


def float16(comm):
    from mixed_precision import MixedPrecision, to_float16

    torch.manual_seed(0)
    model = from_torch(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    stage = model.divide(*[(0, 1), (1, 3)][comm.rank])
    to_float16(stage)
    optimizer = MixedPrecision(chainer.optimizers.Adam(0.01), comm=comm).setup(stage)
    scale = optimizer.loss_scale
    with Pipeline(stage, comm, n_microbatches=3, loss_scale=scale) as pipe:
        losses = []
        for _ in range(20):
            losses.append(pipe.step(X, T.astype(np.int32))["loss"])
            optimizer.update()
        assert losses[-1] < 0.9 * losses[0], losses
    for _, param in stage.namedparams():
        assert param.dtype == np.float16


def test_float16():
    assert_on_ranks(2, float16)
