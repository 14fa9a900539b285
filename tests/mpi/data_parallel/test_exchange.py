"""An exchange leaves on all ranks the same, and what is simulated."""

import itertools

import numpy as np
import pytest

from data_parallel import Exchange, simulate_exchange
from divisible.communication.wire import WIRE
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 30


def gradients_of(n_ranks, n):
    """One for each rank, of far magnitudes."""
    return [
        (np.random.RandomState(r).standard_normal(n) * 10.0 ** (r - 2)).astype("f")
        for r in range(n_ranks)
    ]


def one_array(comm, local_size, **options):
    """Compares it with the simulation, for several sizes and shares."""
    shares = [None, [3, 0, 5, 7][: comm.size]]
    # Only the largest array has several chunks of 8 KiB.
    for chunk_bytes, sizes in [(None, [1, 15, 300, 20_000]), (8192, [20_000])]:
        with Exchange(
            comm,
            local_size=local_size,
            minimum=0,
            chunk_bytes=chunk_bytes,
            every=1,
            timeout=TIMEOUT,
            **options,
        ) as exchange:
            cases = itertools.product(sizes, shares)
            for renewal, (n, n_samples) in enumerate(cases):
                compare(exchange, n, n_samples, local_size, options, renewal)


def compare(exchange, n, n_samples, local_size, options, renewal):
    comm, weights = exchange.comm, None
    if options.get("strategy") == "oyama2017":
        weights = np.random.RandomState(9).standard_normal(n).astype("f")
    gradients = gradients_of(comm.size, n)
    expected = simulate_exchange(
        gradients,
        local_size=local_size,
        n_samples=n_samples,
        weights=weights,
        renewal=renewal,
        **options,
    )
    array = gradients[comm.rank]
    exchange.mean(
        [array],
        weights=weights if weights is None else [weights],
        n_samples=n_samples and n_samples[comm.rank],
    )
    assert array.tobytes() == expected.mean.tobytes(), (n, n_samples)
    sent = comm.allreduce(exchange.sent_bytes, max)
    assert sent == expected.sent_bytes, (n, n_samples)


def two_roundings(comm):
    for local_size in range(1, comm.size + 1):
        for exchange_dtype in WIRE:
            one_array(comm, local_size, exchange_dtype=exchange_dtype)


def oyama2017(comm):
    for local_size in range(1, comm.size + 1):
        for rounding in ["truncate", "nearest"]:
            if comm.size % local_size == 0:
                one_array(
                    comm,
                    local_size,
                    exchange_dtype="fp8",
                    strategy="oyama2017",
                    rounding=rounding,
                )


@pytest.mark.parametrize(
    "n_ranks, strategy",
    [
        (1, two_roundings),
        (3, two_roundings),
        (4, oyama2017),
        *(
            pytest.param(n, strategy, marks=pytest.mark.matrix)
            for n in range(1, 5)
            for strategy in (two_roundings, oyama2017)
        ),
    ],
)
def test_one_array_is_as_simulated(n_ranks, strategy):
    assert_on_ranks(n_ranks, strategy)
