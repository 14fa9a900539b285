"""The smallest bucket that is coded, as measured between these ranks."""

import warnings

import chainer
import numpy as np
import pytest

from data_parallel import Exchange, break_even, measure_break_even
from divisible.communication.errors import StallError
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 30


def measured(comm, gain):
    """Faster from the third size on, or never, as far as the ranks have measured."""
    calls = []

    def seconds(exchanges, n):
        calls.append(n)
        assert [len(exchange.nodes) for exchange in exchanges] == [comm.size] * 2
        # The slowest rank counts.
        is_faster = gain and (n >= break_even.SIZES[2] or comm.rank == 0)
        return [1e-3, 1e-3 if not is_faster else 5e-4]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(break_even, "seconds", seconds)
        for number in range(2):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                exchange = Exchange(
                    comm, exchange_dtype="int8", local_size=1, timeout=TIMEOUT
                )
            # Once for a communicator.
            assert len(calls) == len(break_even.SIZES), number
            texts = [str(each.message) for each in found]
            if gain:
                assert exchange.minimum == break_even.SIZES[2] and not texts
            else:
                assert exchange.minimum > 10**9
                assert len(texts) == (comm.rank == 0), texts
                assert all("'int8' is not faster than 'fp32'" in text for text in texts)
            exchange.close()
        # Of ranks that share a host it is another question.
        assert measure_break_even(comm, "int8") is None
        assert len(calls) == len(break_even.SIZES)


def truly_measured(comm):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Exchange(
            comm, exchange_dtype="e4m3", local_size=1, timeout=TIMEOUT
        ) as exchange:
            found = comm.allgather(exchange.minimum)
            array = np.full(5000, comm.rank, "f")
            exchange.mean([array])
    assert len(set(found)) == 1
    assert found[0] in break_even.SIZES or found[0] > 10**9
    np.testing.assert_allclose(array, (comm.size - 1) / 2, rtol=0.07)


@pytest.mark.parametrize("gain", [True, False])
def test_it_is_measured_once(gain):
    assert_on_ranks(2, measured, gain)


def test_the_measurement_itself():
    assert_on_ranks(2, truly_measured)


def waiting(comm):
    """Rank 1 measures until rank 0 has waited in vain."""
    measures = [comm.rank == 1]

    def seconds(exchanges, n):
        if measures.pop():
            comm.recv(source=0)
        measures.append(False)
        return [2e-3, 1e-3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(break_even, "seconds", seconds)
        with pytest.raises(StallError, match="waited 1 s for .* to measure"):
            Exchange(comm, exchange_dtype="int8", local_size=1, timeout=1)
    if comm.rank == 0:
        comm.send("has waited", 1)
    comm.Barrier()


def test_who_waits_does_so_for_the_timeout():
    assert_on_ranks(2, waiting)


def loaded(comm):
    """A snapshot has what was measured; what is given now is meant."""
    serializer = chainer.serializers.DictionarySerializer()
    options = {"local_size": 1, "timeout": TIMEOUT}
    with Exchange(
        comm, exchange_dtype="int8", minimum=np.int64(7), **options
    ) as exchange:
        exchange.serialize(serializer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(break_even, "seconds", lambda exchanges, n: [2e-3, 1e-3])
        for minimum, expected in [(None, 7), (5, 5)]:
            with Exchange(
                comm, exchange_dtype="int8", minimum=minimum, **options
            ) as exchange:
                exchange.serialize(
                    chainer.serializers.NpzDeserializer(serializer.target)
                )
                exchange.mean([np.ones(9, "f")])
                assert exchange.minimum == expected


def test_a_snapshot_knows_it():
    assert_on_ranks(2, loaded)
