"""Invariant 1 on the published models, narrow ones, and in all combinations.

In float64: float32 sums in another order differ by 1e-7, which some fifty layers and
five steps blow up to more than 1e-5, whatever the pipeline does.
"""

import chainer
import numpy as np
import pytest

from divisible import Plan
from examples.train.models import resnet50, vgg16
from examples.train.models.mlp import MLP
from tests.equivalence import (
    N_STEPS,
    STAGES_PER_RANK,
    check_equal,
    make_batches,
    tuple_model,
)
from tests.mpiexec import assert_on_ranks

BATCH_SIZE = 6
# One, one that divides the batch, and one that does not.
N_MICROBATCHES = (1, 3, 4)


def small_vgg16():
    # The ranks are processes of their own, so nobody else sees this.
    vgg16.GROUPS = tuple(tuple(3 for _ in group) for group in vgg16.GROUPS)
    return vgg16.VGG16(n_units=5, dropout=0)


def small_resnet50(batch_normalization=False):
    resnet50.GROUPS = tuple((n, 2) for n, _ in resnet50.GROUPS)
    return resnet50.ResNet50(batch_normalization=batch_normalization)


def normalized_resnet50():
    """With statistics as if it had been trained before."""
    model = small_resnet50(batch_normalization=True)
    for link in model.links():
        if isinstance(link, chainer.links.BatchNormalization):
            link.avg_mean[...] = np.random.normal(0, 0.1, link.avg_mean.shape)
            link.avg_var[...] = np.random.uniform(2, 4, link.avg_var.shape)
    return model


def small_mlp():
    return MLP(8, n_layers=8)


# How to make it, and the shape of a sample.
MODELS = {
    "mlp": (small_mlp, (8,)),
    "vgg16": (small_vgg16, (3, 32, 32)),
    "resnet50": (small_resnet50, (3, 8, 8)),
    "normalized_resnet50": (normalized_resnet50, (3, 8, 8)),
    "tuples": (tuple_model, (6,)),
}


def check(comm, name, n_stages, **options):
    make, shape = MODELS[name]
    chainer.config.dtype = np.dtype(np.float64)
    # Normalization with the statistics of training depends on microbatches.
    chainer.config.train = name != "normalized_resnet50"
    batches = make_batches([BATCH_SIZE] * N_STEPS, shape, dtype=np.float64)
    cuts = Plan.uniform(len(make()), n_stages).cuts
    check_equal(
        comm, make, cuts, batches, rtol=1e-5, atol=1e-12, lr=0.01, timeout=60, **options
    )


def every_count(comm, name):
    for n_microbatches in N_MICROBATCHES:
        check(comm, name, comm.size, n_microbatches=n_microbatches)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_models(name, n_ranks):
    assert_on_ranks(n_ranks, every_count, name)


def test_normalization_with_given_statistics():
    assert_on_ranks(2, every_count, "normalized_resnet50")


def combination(comm, name, schedule, transport):
    n_stages = STAGES_PER_RANK[schedule] * comm.size
    check(
        comm, name, n_stages, n_microbatches=4, schedule=schedule, transport=transport
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mlp", "vgg16", "tuples"])
@pytest.mark.parametrize("transport", ["mpi", "chainermn"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_combinations(schedule, n_ranks, transport, name):
    # ChainerMN's waits spin: more ranks than cores take turns of a time slice each, so
    # that a case of a second takes a minute.
    if name == "tuples" and STAGES_PER_RANK[schedule] * n_ranks > len(tuple_model()):
        pytest.skip("more stages than layers")
    assert_on_ranks(n_ranks, combination, name, schedule, transport, timeout=300)
