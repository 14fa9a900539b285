"""The same training in Chainer and in PyTorch."""

import time
from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from benchmarks.against_torch import models
from benchmarks.against_torch.trainers import ChainerTrainer, TorchTrainer
from divisible import Divisible
from examples.train.models.resnet50 import Bottleneck


class SmallLanguageModel(models.LanguageModel):
    """A language model that takes no time."""

    N_WORDS, N_UNITS = 11, 6


class SmallTransformer(models.Transformer):
    """A Transformer that takes no time."""

    N_WORDS, N_UNITS, N_LAYERS, N_HEADS = 11, 8, 2, 2


WORKLOADS = [
    models.Workload(
        "a small ResNet",
        lambda: Divisible(
            L.Convolution2D(3, 4, 3, pad=1),
            F.relu,
            partial(F.max_pooling_2d, ksize=2, stride=2),
            Bottleneck(4, 2),
            Bottleneck(8, 3, stride=2),
            partial(F.mean, axis=(2, 3)),
            L.Linear(12, models.N_CLASSES),
        ),
        lambda: models.images(8, 4),
        lambda: chainer.optimizers.MomentumSGD(0.01),
        has_dropout=False,
    ),
    models.Workload(
        "a small LSTM",
        SmallLanguageModel,
        lambda: models.texts(11, 3, 4),
        lambda: chainer.optimizers.SGD(0.5),
    ),
    models.Workload(
        "a small Transformer",
        lambda: SmallTransformer(4),
        lambda: models.texts(11, 3, 4),
        lambda: chainer.optimizers.Adam(0.01),
        as_list=lambda: SmallTransformer(4).as_list(),
    ),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.title)
def test_losses_are_equal(workload):
    pytest.importorskip("torch")
    losses = [
        make(workload, time.process_time).first_losses(3)
        for make in (ChainerTrainer, TorchTrainer)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-3)
    assert losses[0][0] != losses[0][1]


def test_losses_of_fused_layers_are_equal():
    losses = [
        make(WORKLOADS[2], time.process_time).first_losses(3)
        for make in (ChainerTrainer, partial(ChainerTrainer, fused=True))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_step_has_three_phases():
    seconds = iter([0.0, 1.0, 3.0, 6.0])
    trainer = ChainerTrainer(WORKLOADS[1], lambda: next(seconds))
    assert trainer.step() == [1, 2, 3]
    assert trainer.peak_memory() > 1 << 20


@pytest.mark.parametrize("narrow", ["autocast", "products"])
def test_losses_in_bfloat16_are_close(narrow):
    pytest.importorskip("torch")
    workload = WORKLOADS[2]
    single = TorchTrainer(workload, time.process_time).first_losses(2)
    try:
        make = partial(TorchTrainer, narrow=narrow)
        losses = make(workload, time.process_time).first_losses(2)
    finally:
        import torch

        torch.backends.mkldnn.fp32_precision = "none"
    np.testing.assert_allclose(losses, single, rtol=2e-2)
    if narrow == "autocast":
        assert losses != single
