"""Bytes and buffers of a real exchange, as they were planned."""

import numpy as np
import pytest

from data_parallel import Exchange
from divisible.communication.wire import WIRE
from divisible.planning.coding import CodingRate
from divisible.planning.gradient_exchange import CHUNK, GradientExchange
from tests.support.mpiexec import assert_on_ranks

ANY = CodingRate(1e9, 1e9)


def bytes_as_planned(comm, exchange_dtype):
    planned = GradientExchange(comm.size, WIRE[exchange_dtype], ANY)
    # Less than a chunk, and several buckets of unequal sizes.
    for sizes in [[3000], [3 * CHUNK + 77, CHUNK // 2, 4 * CHUNK + 3]]:
        with Exchange(
            comm, exchange_dtype=exchange_dtype, local_size=1, minimum=0
        ) as exchange:
            exchange.mean([np.ones(n, np.float32) for n in sizes])
            sent = comm.allreduce(exchange.sent_bytes, max)
            kept = comm.allreduce(exchange._ranks.buffers.n_bytes, max)
        n = sum(sizes)
        assert sent == pytest.approx(planned.sent_bytes(n), 1e-3)
        assert kept == pytest.approx(planned.buffer_bytes(n), 0.1)


@pytest.mark.parametrize(("n_ranks", "exchange_dtype"), [(2, "fp32"), (3, "int8")])
def test_bytes_and_buffers_are_those_that_were_planned(n_ranks, exchange_dtype):
    assert_on_ranks(n_ranks, bytes_as_planned, exchange_dtype)
