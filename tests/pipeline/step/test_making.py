"""What of a pipeline depends on where its layers lie."""

import warnings
from types import SimpleNamespace

import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

import chainer_kernels
from divisible import Divisible
from pipeline import Pipeline
from pipeline.start.agreement import StartAnnouncement, agree
from pipeline.step.making import warn_of_gpu_products

X, T = np.eye(4, 3, dtype=np.float32), np.arange(4, dtype=np.int32) % 3


def two_stages(is_tied=False):
    model = Divisible(L.Linear(3, 3), L.Linear(3, 3))
    if is_tied:
        model.tie("/0/W", "/1/W")
    return [model.divide(0, 1), model.divide(1, 2)]


@pytest.mark.parametrize("is_tied", [False, True])
def test_only_shared_parameters_are_exchanged(is_tied):
    with Pipeline(
        two_stages(is_tied), MPI.COMM_SELF, n_microbatches=2, schedule="interleaved"
    ) as pipe:
        assert list(pipe.internals.step.stages) == [0, 1]
        assert [stage.loss for stage in pipe.internals.step.stages.values()] == [
            None,
            pipe.internals.loss,
        ]
        assert (pipe.internals.step.ties is not None) == is_tied


def test_parts_that_are_made_anew_go_on():
    stages = two_stages(is_tied=True)
    with Pipeline(
        stages, MPI.COMM_SELF, n_microbatches=2, schedule="interleaved"
    ) as pipe:
        loss = pipe.step(X, T)["loss"]
        grads = [param.grad.copy() for stage in stages for param in stage.params()]
        runner, hooks = pipe.internals.step.runner, pipe.internals.step.updates.hooks
        pipe.internals.lay_out(agree([StartAnnouncement.of(stages, (), {}, True)]))
        assert (
            pipe.internals.step.runner is not runner
            and pipe.internals.ties is pipe.internals.step.ties
        )
        assert pipe.internals.step.updates.hooks is hooks
        assert pipe.step(X, T)["loss"] == loss
    for param, grad in zip((p for stage in stages for p in stage.params()), grads):
        np.testing.assert_array_equal(param.grad, grad)


def test_products_in_bfloat16_are_not_those_of_a_gpu():
    gpu = SimpleNamespace(xp=object(), name="@cupy:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_gpu_products(gpu)
        with chainer_kernels.products("bfloat16"):
            warn_of_gpu_products(SimpleNamespace(xp=np, name="@numpy"))
    words = "in float32 on @cupy:0, although bfloat16"
    with chainer_kernels.products("bfloat16"), pytest.warns(UserWarning, match=words):
        warn_of_gpu_products(gpu)
