"""Replicas are the same model with the same values, or are told of."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.optimizer_hooks import WeightDecay

from divisible.communication.errors import DisagreementError
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    assert_alike,
    make_batches,
    make_model,
    replicate,
    values_of,
)


def different_values(comm):
    model = make_model(seed=comm.rank)
    optimizer = replicate(comm, model)
    (x, t), *_ = make_batches(1, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update(model, x, t)
    texts = [str(w.message) for w in caught if "differ between" in str(w.message)]
    assert len(texts) == (comm.rank == 0)
    assert all("/predictor/0/W on rank 1" in text for text in texts)
    # Their gradients were those of other weights.
    assert optimizer.t == 0
    assert values_of(model) == values_of(make_model(seed=0))
    optimizer.update(model, x, t)
    assert optimizer.t == 1
    optimizer.close()


def test_replicas_that_differ_get_the_values_of_rank_0():
    assert_on_ranks(2, different_values)


def unlike(comm, what):
    """Makes something differ on rank 1, and returns what the refusal must say."""
    model, inner, hooks = make_model(), optimizers.MomentumSGD(0.1), []
    differs = comm.rank == 1
    if what == "name" and differs:
        model.add_param("more", (2,), initializer=0)
    if what == "shape" and differs:
        model.predictor[2].b.array = np.zeros(6, "f")
    if what == "dtype" and differs:
        model.predictor[2].b.array = np.zeros(5, "d")
    if what == "hyperparameter" and differs:
        inner.lr = 0.2
    if what == "optimizer" and differs:
        inner = optimizers.SGD(0.1)
    if what == "hook":
        hooks = [WeightDecay(0.1 * (1 + differs))]
    if what == "rule" and differs:
        optimizer = replicate(comm, model, inner)
        model.predictor[2].b.update_rule.hyperparam.lr = 0.3
        return model, optimizer
    return model, replicate(comm, model, inner, hooks)


REFUSALS = {
    "name": "/more",
    "shape": r"/predictor/1/b of \(5,\)",
    "dtype": "/predictor/1/b of .* float32",
    "hyperparameter": "lr=0.1 of MomentumSGD, but rank 1 has lr=0.2",
    "optimizer": "MomentumSGD",
    "hook": "rate=0.1 of WeightDecay, but rank 1 has rate=0.2",
    "rule": "lr=0.3 of the update rule of /predictor/1/b",
}


def refused(comm):
    for what, text in REFUSALS.items():
        model, optimizer = unlike(comm, what)
        before = values_of(model)
        with pytest.raises(DisagreementError, match=text):
            optimizer.update()
        assert values_of(model) == before
        optimizer.close()


def test_replicas_of_unlike_models_are_refused_by_name():
    assert_on_ranks(2, refused)


def drifting(comm):
    model = make_model()
    optimizer = replicate(comm, model, check_every=3)
    for i, (x, t) in enumerate(make_batches(4, 4)):
        if i == 3:
            with pytest.raises(DisagreementError, match="number 4 1 of 4 .*/1/W: on r"):
                optimizer.update(model, x, t)
            break
        optimizer.update(model, x, t)
        if i == 1 and comm.rank == 1:
            model.predictor[2].W.array[0, 0] += 1e-3
    optimizer.close()


def test_replicas_that_drift_apart_are_noticed():
    assert_on_ranks(2, drifting)


def lazily_initialized(comm):
    """Compares replicas again when a parameter gets its shape."""
    np.random.seed(comm.rank)
    model = chainer.Sequential(L.Linear(None, 4), L.Linear(None, 3))
    optimizer = replicate(comm, model)
    x = np.ones((2, 5), "f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.update(lambda: F.sum(model(x)))
        assert optimizer.t == 0
    optimizer.update(lambda: F.sum(model(x)))
    assert optimizer.t == 1
    assert_alike(comm, model)
    optimizer.close()


def test_parameters_may_be_initialized_late():
    assert_on_ranks(2, lazily_initialized)
