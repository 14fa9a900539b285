"""Exchanges one after the other, at the same time, and in parts."""

import gc
import random
import time
import weakref

import numpy as np
import pytest
from chainer.serializers import DictionarySerializer, NpzDeserializer

from data_parallel import Exchange, simulate_exchange
from data_parallel.arrays import specs_of
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 30


def gradients_of(seed, n_ranks, n):
    random = np.random.RandomState(seed)
    return [random.standard_normal(n).astype("f") for _ in range(n_ranks)]


def check(exchange, gradients, expected, **options):
    """Exchanges one array, which must be as expected to the bit."""
    array = gradients[exchange.comm.rank].copy()
    exchange.mean([array], **options)
    assert array.tobytes() == expected.tobytes()


def in_parts(comm):
    """Something else is computed in between, and looks move the messages."""
    with Exchange(
        comm,
        exchange_dtype="int8",
        local_size=1,
        chunk_bytes=4000,
        minimum=0,
        timeout=TIMEOUT,
    ) as exchange:
        exchange.look()
        with pytest.raises(RuntimeError, match="no exchange has begun: call start"):
            exchange.finish()
        with pytest.raises(RuntimeError, match="no exchange has begun: call start"):
            exchange.put(0, np.ones(3, "f"))
        for n_looks in [0, 3, 2000]:
            gradients = gradients_of(0, comm.size, 20_000)
            array = gradients[comm.rank].copy()
            exchange.start([array])
            with pytest.raises(RuntimeError, match="begun already: finish it before"):
                exchange.start([array])
            with pytest.raises(RuntimeError, match="finish it before you close it"):
                exchange.close()
            with pytest.raises(RuntimeError, match="finish it before you save or load"):
                exchange.serialize(DictionarySerializer())
            for _ in range(n_looks):
                exchange.look()
            (result,) = exchange.finish()
            assert result is array
            expected = simulate_exchange(gradients, exchange_dtype="int8")
            assert array.tobytes() == expected.mean.tobytes()
        exchange.begin(lambda: (), None, None)
        assert exchange.finish() == []
        exchange.mean([np.empty((3, 0), "f")])
        assert exchange.sent_bytes == 0
        assert set(exchange.seconds) == {"encode", "wire", "sum", "decode"}
        exchange.close()
        exchange.close()
        with pytest.raises(RuntimeError, match="the exchange is closed"):
            exchange.mean([array])


def not_put(comm):
    """An array that is forgotten is not one that is missing."""
    arrays = [np.full(3, comm.rank, "f") for _ in range(2)]
    with Exchange(
        comm, exchange_dtype="fp32", local_size=1, timeout=TIMEOUT
    ) as exchange:
        exchange.begin(lambda: specs_of(arrays, None), None, None)
        exchange.put(1, arrays[1])
        with pytest.raises(RuntimeError, match="array 0 has not been put: put all, or"):
            exchange.finish()
        exchange.put(0, arrays[0])
        exchange.finish()
    for array in arrays:
        np.testing.assert_array_equal(array, np.mean(range(comm.size)))


def changing(comm):
    """Other arrays each time, in one array's memory as well."""
    choices = random.Random(0)
    with Exchange(
        comm,
        exchange_dtype="e4m3",
        local_size=1,
        block=16,
        bucket_bytes=1000,
        minimum=0,
    ) as exchange:
        for seed in range(30):
            n = choices.choice([1, 5, 100, 100, 2000, 5000])
            gradients = gradients_of(seed, comm.size, n)
            expected = simulate_exchange(
                gradients, exchange_dtype="e4m3", block=16
            ).mean
            check(exchange, gradients, expected)


def interleaved(comm):
    """Two exchanges at once over one communicator."""
    options = {"local_size": 1, "minimum": 0, "chunk_bytes": 4000, "timeout": TIMEOUT}
    with (
        Exchange(comm, exchange_dtype="int8", **options) as one,
        Exchange(comm, exchange_dtype="fp32", **options) as other,
    ):
        for seed in range(5):
            first, second = (gradients_of(seed + i, comm.size, 9000) for i in range(2))
            arrays = first[comm.rank].copy(), second[comm.rank].copy()
            one.start([arrays[0]])
            other.start([arrays[1]])
            for exchange in [one, other, one]:
                exchange.look()
            for exchange in [one, other][:: 1 if seed % 2 else -1]:
                exchange.finish()
            for array, given, exchange_dtype in [
                (arrays[0], first, "int8"),
                (arrays[1], second, "fp32"),
            ]:
                expected = simulate_exchange(given, exchange_dtype=exchange_dtype).mean
                assert array.tobytes() == expected.tobytes()


def many_units(comm):
    """More units than there are tags for them."""
    n = 9000
    gradients = gradients_of(0, comm.size, n)
    with Exchange(
        comm, exchange_dtype="fp32", local_size=1, chunk_bytes=4, timeout=TIMEOUT
    ) as exchange:
        check(
            exchange,
            gradients,
            simulate_exchange(gradients, exchange_dtype="fp32").mean,
        )
        assert sum(len(bucket.units) for bucket in exchange._layouts.buckets) > 4096


@pytest.mark.parametrize("n_ranks", [3, *matrix(2)])
@pytest.mark.parametrize("case", [in_parts, not_put, changing, interleaved])
def test_calls(n_ranks, case):
    assert_on_ranks(n_ranks, case)


def test_more_units_than_tags():
    assert_on_ranks(2, many_units)


def waits(comm):
    """A wait for another rank leaves the core to others."""
    with Exchange(
        comm, exchange_dtype="int8", local_size=1, minimum=0, timeout=TIMEOUT
    ) as exchange:
        exchange.mean([np.ones(3000, "f")])
        start, computed = time.perf_counter(), time.process_time()
        if comm.rank == 0:
            comm.send("waits from now on", 1)
        if comm.rank == 1:
            comm.recv(source=0)
            # Other ranks' waits take at least so long, on a busy machine longer.
            time.sleep(1)
        exchange.mean([np.ones(3000, "f")])
        took, computed = time.perf_counter() - start, time.process_time() - computed
        assert took >= 1 and computed < 0.6 * took
        assert 0 < sum(exchange.seconds.values()) <= took


def test_a_wait_yields_the_core():
    assert_on_ranks(2, waits)


def nothing_is_kept(comm):
    """Neither arrays nor ever more buffers."""
    gc.collect()
    gc.disable()
    try:
        with Exchange(
            comm,
            exchange_dtype="int8",
            local_size=1,
            minimum=0,
            chunk_bytes=4000,
            timeout=TIMEOUT,
        ) as exchange:
            held = []
            for _ in range(8):
                array = np.ones(20_000, "f")
                is_kept = weakref.ref(array)
                exchange.mean([array])
                del array
                assert is_kept() is None
                held.append(exchange._ranks.buffers.n_bytes)
            # How many units are under way at once is a matter of time; all that one
            # exchange sends and receives is some 42 kB, and eight would keep more.
            assert 0 < max(held) <= 42_000
            exchange.mean([np.ones(3, "f")])
            assert exchange._ranks.buffers.n_bytes < 1000
    finally:
        gc.enable()


def test_nothing_is_kept():
    assert_on_ranks(2, nothing_is_kept)


def kept_quantiles(comm):
    """Taken anew every third time; a snapshot knows of when, and of which."""
    # So few that they are drawn.
    n, samples = 3000, 500
    weights = gradients_of(99, 1, n)[0]
    options = {
        "strategy": "oyama2017",
        "local_size": 1,
        "samples": samples,
        "every": 3,
        "timeout": TIMEOUT,
    }

    def exchange_of(state=None):
        made = Exchange(comm, exchange_dtype="fp8", **options)
        if state is not None:
            made.serialize(NpzDeserializer(state))
        return made

    exchange, q = exchange_of(), None
    for step in range(7):
        gradients = [
            gradient * np.float32(1 + step)
            for gradient in gradients_of(step, comm.size, n)
        ]
        expected = simulate_exchange(
            gradients,
            exchange_dtype="fp8",
            strategy="oyama2017",
            weights=weights,
            samples=samples,
            renewal=step // 3,
            q=None if step % 3 == 0 else q,
        )
        assert (expected.q == q) == (step % 3 > 0)
        q = expected.q
        check(exchange, gradients, expected.mean, weights=[weights])
        if step in [1, 4]:
            serializer = DictionarySerializer()
            exchange.serialize(serializer)
            exchange.close()
            exchange = exchange_of(serializer.target)
    exchange.close()


def quantiles_by_array(comm):
    """Each has its own; one that is not finite on a rank disturbs no other."""
    weights = gradients_of(9, 3, 50)
    of_ranks = [
        [g * np.float32(10.0**i) for i, g in enumerate(gradients_of(r, 3, 50))]
        for r in range(comm.size)
    ]
    arrays = [array.copy() for array in of_ranks[comm.rank]]
    if comm.rank == 1:
        arrays[1][7] = np.nan
    arrays[2][:] = 0
    arrays.append(np.full(5, comm.rank, "f"))
    weights.append(np.zeros(5, "f"))
    with Exchange(
        comm, exchange_dtype="fp8", strategy="oyama2017", local_size=1, bucket_bytes=400
    ) as exchange:
        exchange.mean(arrays, weights=weights, exempt=[3])
    np.testing.assert_array_equal(arrays[3], np.mean(range(comm.size), dtype="f"))
    expected = simulate_exchange(
        [each[0] for each in of_ranks],
        exchange_dtype="fp8",
        strategy="oyama2017",
        weights=weights[0],
    )
    assert arrays[0].tobytes() == expected.mean.tobytes()
    assert (~np.isfinite(arrays[1])).nonzero()[0].tolist() == [7]
    assert not arrays[2].any()


@pytest.mark.parametrize("case", [kept_quantiles, quantiles_by_array])
def test_quantiles(case):
    assert_on_ranks(2, case)
