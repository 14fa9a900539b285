"""Invariant 1 on the published models, narrow ones, and in all combinations.

In float64: float32 sums in another order differ by 1e-7, which some fifty layers and
five steps blow up to more than 1e-5, whatever the pipeline does.
"""

from typing import Callable, NamedTuple
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np
import pytest

from divisible import Plan
from divisible.schedules.recomputation import RECOMPUTATIONS
from examples.autoencoder.model import Autoencoder
from examples.language_model.model import LanguageModel
from examples.train.models import resnet50, vgg16
from examples.train.models.mlp import MLP
from examples.unet.model import UNet
from tests.support.equivalence import (
    CLASSIFICATION,
    N_STEPS,
    STAGES_PER_RANK,
    Measures,
    check_equal,
    make_batches,
    tuple_model,
)
from tests.support.mpiexec import assert_on_ranks

BATCH_SIZE = 6
# One, one that divides the batch, and one that does not.
N_MICROBATCHES = (1, 3, 4)


def small_vgg16(dropout=0):
    narrow = tuple(tuple(3 for _ in group) for group in vgg16.GROUPS)
    with mock.patch.object(vgg16, "GROUPS", narrow):
        return vgg16.VGG16(n_units=5, dropout=dropout)


def small_resnet50(batch_normalization=False, **options):
    narrow = tuple((n, 2) for n, _ in resnet50.GROUPS)
    with mock.patch.object(resnet50, "GROUPS", narrow):
        return resnet50.ResNet50(batch_normalization=batch_normalization, **options)


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


def images(*shape):
    return lambda: make_batches([BATCH_SIZE] * N_STEPS, shape, dtype=np.float64)


def labelled_pixels():
    rng = np.random.RandomState(0)
    return [
        (rng.normal(size=(n, 1, 8, 8)), rng.randint(0, 2, (n, 8, 8)).astype(np.int32))
        for n in [BATCH_SIZE] * N_STEPS
    ]


def as_targets():
    return [(x, x) for x, _ in images(8)()]


def words():
    text = np.random.RandomState(0).randint(0, 9, (N_STEPS, BATCH_SIZE, 8), np.int32)
    return [(x[:, :-1], x[:, 1:]) for x in text]


class Case(NamedTuple):
    make: Callable
    batches: Callable
    # Whether what a layer computes depends on the microbatches.
    sees_microbatches: bool = False
    measures: Measures = CLASSIFICATION
    lr: float = 0.01


MODELS = {
    "mlp": Case(small_mlp, images(8)),
    "vgg16": Case(small_vgg16, images(3, 32, 32)),
    "resnet50": Case(small_resnet50, images(3, 8, 8)),
    "normalized_resnet50": Case(normalized_resnet50, images(3, 8, 8)),
    "tuples": Case(tuple_model, images(6)),
    "dropping_vgg16": Case(lambda: small_vgg16(dropout=0.5), images(3, 32, 32), True),
    "resnet50_cut_inside": Case(
        lambda: small_resnet50(batch_normalization=True, cut_inside_blocks=True),
        # Less, and single values would be normalized.
        images(3, 16, 16),
        True,
        # Normalized over so few values, a rounding error grows a thousandfold a step.
        lr=0.001,
    ),
    "unet": Case(lambda: UNet(width=2), labelled_pixels),
    "autoencoder": Case(
        lambda: Autoencoder((8, 7, 6, 3)),
        as_targets,
        measures=Measures(F.mean_squared_error, F.mean_absolute_error),
    ),
    "language_model": Case(
        lambda: LanguageModel(9, 4, n_convolutions=2, n_back=3, dropout=0.3),
        words,
        True,
    ),
}
# What is cut where data goes past the next layer, or is random, or is tied.
REAL = (
    "dropping_vgg16",
    "resnet50_cut_inside",
    "unet",
    "autoencoder",
    "language_model",
)


def check(comm, name, n_stages, **options):
    case = MODELS[name]
    chainer.config.dtype = np.dtype(np.float64)
    # Normalization with the statistics of training depends on microbatches.
    chainer.config.train = name != "normalized_resnet50"
    check_equal(
        comm,
        case.make,
        Plan.uniform(len(case.make()), n_stages).cuts,
        case.batches(),
        rtol=1e-5,
        atol=1e-12,
        lr=case.lr,
        timeout=60,
        serially_in_microbatches=case.sees_microbatches,
        measures=case.measures,
        **options,
    )


def every_count(comm, name):
    for n_microbatches in N_MICROBATCHES:
        check(comm, name, comm.size, n_microbatches=n_microbatches)


@pytest.mark.parametrize(
    "n_ranks",
    [
        pytest.param(1, marks=pytest.mark.matrix),
        pytest.param(2, marks=pytest.mark.matrix),
        3,
        pytest.param(4, marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_models(name, n_ranks):
    assert_on_ranks(n_ranks, every_count, name)


@pytest.mark.matrix
def test_normalization_with_given_statistics():
    assert_on_ranks(2, every_count, "normalized_resnet50")


def combination(comm, name, schedule, transport):
    n_stages = STAGES_PER_RANK[schedule] * comm.size
    check(
        comm, name, n_stages, n_microbatches=4, schedule=schedule, transport=transport
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mlp", "vgg16", "tuples"])
@pytest.mark.parametrize("transport", ["mpi", "rma", "chainermn"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_combinations(schedule, n_ranks, transport, name):
    # ChainerMN's waits spin: more ranks than cores take turns of a time slice each, so
    # that a case of a second takes a minute.
    if name == "tuples" and STAGES_PER_RANK[schedule] * n_ranks > len(tuple_model()):
        pytest.skip("more stages than layers")
    assert_on_ranks(n_ranks, combination, name, schedule, transport, timeout=300)


def some_combinations(comm, name):
    for schedule, recompute in (
        ("1f1b", "always"),
        ("gpipe", "except_last"),
        ("zb_v", "never"),
    ):
        n_stages = STAGES_PER_RANK[schedule] * comm.size
        check(
            comm,
            name,
            n_stages,
            n_microbatches=2,
            schedule=schedule,
            recompute=recompute,
        )


@pytest.mark.parametrize("name", REAL)
def test_real_networks(name):
    assert_on_ranks(3, some_combinations, name, timeout=120)


def all_combinations(comm, name, schedule):
    n_stages = STAGES_PER_RANK[schedule] * comm.size
    for recompute in RECOMPUTATIONS:
        # More would leave batch normalization single samples.
        for n_microbatches in (1, 2) if "resnet50" in name else (1, 4):
            check(
                comm,
                name,
                n_stages,
                n_microbatches=n_microbatches,
                schedule=schedule,
                recompute=recompute,
            )


@pytest.mark.matrix
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_all_combinations(schedule, n_ranks, name):
    assert_on_ranks(n_ranks, all_combinations, name, schedule, timeout=300)
