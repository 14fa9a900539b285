"""Double buffering: what is applied is one update late."""

import time

import chainer.links as L
import numpy as np
from chainer import optimizers

from data_parallel import simulate_exchange
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    N_STEPS,
    assert_alike,
    assert_close,
    make_batches,
    make_model,
    parts_of,
    replicate,
)


def one_update_late(comm):
    """Compares with a serial run that applies the last gradients."""
    batches = make_batches(N_STEPS, 4 * comm.size)
    expected, model = make_model(), make_model()
    serial = optimizers.MomentumSGD(0.1).setup(expected)
    last = None
    for x, t in batches:
        expected.cleargrads()
        expected(x, t).backward()
        now = [p.grad for p in expected.params()]
        if last is not None:
            for param, gradient in zip(expected.params(), last):
                param.grad = gradient
            serial.update()
        last = now
    optimizer = replicate(comm, model, double_buffering=True)
    own = parts_of([4] * comm.size, comm.rank)
    for x, t in batches:
        optimizer.update(model, x[own], t[own])
    assert optimizer.t == N_STEPS - 1
    assert_close(model, expected)
    optimizer.close()


def test_double_buffering_is_one_update_late():
    assert_on_ranks(2, one_update_late)


def ratios_of_late_weights(comm):
    """Codes are relative to the weights that there were when the exchange began.

    Rank 1 is late, so that rank 0 has updated before anything is coded.
    """
    np.random.seed(0)
    model = L.Linear(40, 30, nobias=True)
    options = {"strategy": "oyama2017", "exchange_dtype": "fp8", "local_size": 1}
    optimizer = replicate(
        comm, model, optimizers.SGD(0.5), double_buffering=True, minimum=0, **options
    )
    random, weights = np.random.RandomState(1), model.W.array.copy()
    last = None
    for step in range(4):
        gradients = [random.randn(30, 40).astype("f") for _ in range(comm.size)]
        q = None if last is None else last.q
        found = simulate_exchange(
            gradients,
            exchange_dtype="fp8",
            strategy="oyama2017",
            weights=weights,
            q=q,
            array="/W",
        )
        model.W.grad = gradients[comm.rank]
        if step and comm.rank == 1:
            time.sleep(0.1)
        optimizer.update()
        if last is not None:
            weights = weights - np.float32(0.5) * last.mean
        np.testing.assert_array_equal(model.W.array, weights)
        last = found
    assert_alike(comm, model)
    optimizer.close()


def test_ratios_are_to_the_weights_of_the_begin():
    assert_on_ranks(2, ratios_of_late_weights)
