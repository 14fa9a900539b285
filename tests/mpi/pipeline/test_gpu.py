"""Two ranks on one GPU compute what they compute on the CPU. Skipped without a GPU."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from pipeline import Pipeline
from tests.support.equivalence import STAGES_PER_RANK, assert_close, stages_of_rank
from tests.support.gpu import NEEDS_GPU
from tests.support.mpiexec import assert_on_ranks

N_LAYERS = 8
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


pytestmark = NEEDS_GPU


def train(comm, device, dtype, schedule):
    """Returns the losses, and the parameters of this rank's stages, as on the CPU."""
    np.random.seed(3)
    with chainer.using_config("dtype", np.dtype(dtype)):
        model = Divisible(
            *[L.Linear(6, 6) for _ in range(N_LAYERS - 1)], L.Linear(6, 4)
        )
    model.tie("/1/W", "/6/W", transpose=True)
    n_stages = STAGES_PER_RANK[schedule] * comm.size
    plan = Plan.uniform(N_LAYERS, n_stages)
    mine = stages_of_rank(comm, n_stages, schedule)
    stages = [model.divide(*plan.range(i)) for i in mine]
    for stage in stages:
        stage.to_device(device)
    optimizers = [chainer.optimizers.SGD(0.1).setup(stage) for stage in stages]
    for optimizer in optimizers:
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.1))
    pipe = Pipeline(
        stages,
        comm,
        n_microbatches=3,
        schedule=schedule,
        lossfun=F.softmax_cross_entropy,
        timeout=20,
    )
    pipe.global_hooks(optimizers)
    rng = np.random.RandomState(0)
    losses = []
    # The last minibatch is smaller, so that shapes are agreed anew.
    for n in (8, 8, 5):
        x = rng.normal(size=(n, 6)).astype(dtype)
        t = rng.randint(0, 4, n).astype(np.int32)
        losses.append(pipe.step(x, t)["loss"])
        for optimizer in optimizers:
            optimizer.update()
    params = dict(pair for stage in stages for pair in stage.namedparams())
    assert all(p.device == chainer.get_device(device) for p in params.values())
    arrays = {path: chainer.cuda.to_cpu(p.array) for path, p in params.items()}
    prediction = pipe.predict(x)
    assert chainer.backend.get_device_from_array(prediction) == chainer.get_device(
        device
    )
    return losses, arrays, chainer.cuda.to_cpu(prediction)


def compare(comm, dtype):
    for schedule in STAGES_PER_RANK:
        on_cpu, on_gpu = (
            train(comm, device, dtype, schedule) for device in ("@numpy", "@cupy:0")
        )
        tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        assert_close(on_gpu[0], on_cpu[0], **tolerance)
        assert_close(on_gpu[2].astype("f"), on_cpu[2].astype("f"), **tolerance)
        for path, expected in on_cpu[1].items():
            actual = on_gpu[1][path]
            assert actual.dtype == expected.dtype == np.dtype(dtype)
            assert_close(actual.astype("f"), expected.astype("f"), **tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_gpu_computes_what_the_cpu_does(dtype):
    assert_on_ranks(2, compare, dtype, timeout=240)
