"""Ranks whose activations wait as bfloat16 find gradients near those of float32."""

import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks

N, WIDTH, N_MICROBATCHES = 64, 256, 4
X = np.random.RandomState(0).normal(size=(N, WIDTH)).astype(np.float32)
T = np.random.RandomState(1).randint(0, 10, N).astype(np.int32)


def model():
    np.random.seed(0)
    layers = [f for _ in range(2) for f in (L.Linear(WIDTH, WIDTH), F.tanh)]
    return Divisible(*layers, L.Linear(WIDTH, 10))


def gradients(comm, per_rank=1, cuts=None, **arguments):
    """Returns the gradients of this rank, and the loss."""
    layers = model()
    if cuts is None:
        cuts = Plan.uniform(len(layers), comm.size * per_rank).cuts
    stages = [
        layers.divide(cuts[i], cuts[i + 1])
        for i in range(comm.rank, comm.size * per_rank, comm.size)
    ]
    with Pipeline(stages, comm, n_microbatches=N_MICROBATCHES, **arguments) as pipe:
        # In the second step nothing is new.
        pipe.step(X, T)
        loss = pipe.step(X, T)["loss"]
        assert pipe.plan.hold_dtype == arguments.get("hold_dtype", "float32")
    return {k: p.grad for stage in stages for k, p in stage.namedparams()}, loss


def bounds():
    """Returns gradients in float64, and bounds on the errors of those from bfloat16.

    tanh keeps y, and Linear its input, which is the y before. A held y is y (1 + d),
    |d| <= u = 2**-8. So 1 - y**2 errs by y**2 (2 u + u**2) at most. If gy errs by e,

        gy (1 - y**2)  errs by  e (1 - y**2) + (|gy| + e) y**2 (2 u + u**2)
        gy W           errs by  e |W|
        gy^T x         errs by  e^T |x| + u (|gy| + e)^T |x|
    """
    u = 2.0**-8
    layers, slack = model(), 1e-5
    weights = [
        [p.array.astype(np.float64) for p in (layers[i].W, layers[i].b)]
        for i in range(0, 5, 2)
    ]
    hs = [X.astype(np.float64)]
    for W, b in weights[:-1]:
        hs.append(np.tanh(hs[-1] @ W.T + b))
    y = hs[-1] @ weights[-1][0].T + weights[-1][1]
    p = np.exp(y - y.max(axis=1, keepdims=True))
    g = (p / p.sum(axis=1, keepdims=True) - np.eye(10)[T]) / N
    e, found = np.zeros_like(g), {}
    for k in reversed(range(3)):
        h = hs[k]
        # The caller holds x, which is exact.
        by_rounding = u * (k > 0)
        found[f"/{2 * k}/W"] = (
            g.T @ h,
            (e + by_rounding * (np.abs(g) + e)).T @ np.abs(h)
            + slack * np.abs(g).T @ np.abs(h),
        )
        size = e.sum(axis=0) + slack * np.abs(g).sum(axis=0)
        found[f"/{2 * k}/b"] = g.sum(axis=0), size
        if k:
            gy, ey = g @ weights[k][0], e @ np.abs(weights[k][0])
            g = gy * (1 - h**2)
            e = ey * (1 - h**2) + (np.abs(gy) + ey) * h**2 * (2 * u + u * u)
    return found


def near_those_of_float32(comm):
    expected = bounds()
    for case in (
        {"schedule": "1f1b"},
        {"schedule": "gpipe"},
        {"schedule": "zb_h1"},
        {"schedule": "zb_h1", "weight_groups": 2},
        {"schedule": "interleaved", "per_rank": 2},
        {"schedule": "gpipe", "hold_in": "disk"},
    ):
        exact, loss = gradients(comm, **case)
        found, its_loss = gradients(comm, **case, hold_dtype="bfloat16")
        assert its_loss == loss, case
        differ = 0
        for path, gradient in found.items():
            wanted, bound = expected[path]
            error = np.abs(gradient - wanted)
            assert (error <= bound + 1e-12).all(), (case, path, error.max())
            # A bound that says something.
            assert bound.max() < 0.3 * np.abs(wanted).max(), (case, path)
            differ += not np.array_equal(gradient, exact[path])
        # With 1F1B the last stage's backward follows at once.
        rounds = comm.rank == 0 or case["schedule"] in ("gpipe", "interleaved")
        assert (differ > 0) == rounds or case["schedule"] == "zb_h1", (case, differ)


def recomputed_from_rounded_inputs(comm):
    exact, loss = gradients(comm, schedule="gpipe", recompute="always")
    found, its_loss = gradients(
        comm, schedule="gpipe", recompute="always", hold_dtype="bfloat16"
    )
    # The loss is that of the second forward.
    assert 0 < abs(its_loss - loss) < 2.0**-8 * loss
    for path, gradient in found.items():
        # The first stage recomputes from inputs that the caller holds, but gets
        # gradients of the second.
        assert not np.array_equal(gradient, exact[path])
        np.testing.assert_allclose(
            gradient, exact[path], rtol=0, atol=0.05 * np.abs(exact[path]).max()
        )


def the_same_bits_wherever_all_wait(comm):
    alone = comm.Split(comm.rank, 0)
    whole, loss = gradients(alone, schedule="gpipe", hold_dtype="bfloat16")
    for cuts in ([0, 2, 5], [0, 1, 5], [0, 4, 5]):
        found, its_loss = gradients(
            comm, cuts=cuts, schedule="gpipe", hold_dtype="bfloat16"
        )
        assert its_loss == loss
        for path, gradient in found.items():
            np.testing.assert_array_equal(gradient, whole[path], err_msg=path)
    alone.Free()


def from_a_plan(comm):
    plan = Plan([0, 3, 5], N_MICROBATCHES, "gpipe", hold_dtype="bfloat16")
    expected, _ = gradients(comm, schedule="gpipe", hold_dtype="bfloat16")
    layers = model()
    with Pipeline(layers, comm, plan=plan) as pipe:
        pipe.step(X, T)
        assert pipe.plan == plan and "activations wait in bfloat16" in str(pipe)
        for stage in pipe.stages.values():
            for path, param in stage.namedparams():
                np.testing.assert_array_equal(param.grad, expected[path])


def held_in_half(comm):
    near_those_of_float32(comm)
    recomputed_from_rounded_inputs(comm)
    the_same_bits_wherever_all_wait(comm)
    from_a_plan(comm)


def test_held_in_half():
    assert_on_ranks(2, held_in_half)
