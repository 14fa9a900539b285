"""The mean of many arrays: the same bits on all ranks, within the bound."""

import hashlib
import itertools
import random
import warnings

import numpy as np
import pytest

from data_parallel import Exchange
from data_parallel.arrays import Spec
from data_parallel.nodes import shares
from divisible.communication.wire import WIRE
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 30
BLOCK = 32
# Those after the first nine are exempt.
EXEMPT = [9, 10, 11]


def arrays_of(rank, seed=0):
    """Of all kinds, in whatever memory."""
    numbers = np.random.RandomState(100 * seed + rank)

    def some(*shape):
        return numbers.standard_normal(shape) * 10.0 ** (rank - 1)

    return [
        some(7, 5).astype("e"),
        some(300).astype("f"),
        some(20, 3).astype("d"),
        np.empty((0, 4), "f"),
        np.array(some(), "f"),
        some(50, 3).astype("f")[:, 1],
        some(40).astype("f")[::-1],
        some(5000).astype("f"),
        np.asfortranarray(some(9, 8).astype("f")),
        some(11).astype("f"),
        np.array(some(), "d"),
        some(33).astype("e"),
    ]


def bits(arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def bound_of(parts, wire):
    """Returns the exact mean of one array, and the largest error, float64."""
    exact = np.sum(parts, axis=0)
    first = np.sum([wire.bound(part, BLOCK) for part in parts], axis=0)
    arithmetic = len(parts) * 2.0**-22 * np.sum(np.abs(parts), axis=0) + 1e-40
    return exact, first + wire.bound(np.abs(exact) + first, BLOCK) + arithmetic


def check_means(arrays, of_ranks, exchange_dtype, n_samples=None, exact_ones=EXEMPT):
    """Compares means with the exact ones."""
    weights = [float(share) for share in shares(n_samples, len(of_ranks))]
    for i, array in enumerate(arrays):
        parts = [
            weight * each[i].astype("d").ravel()
            for weight, each in zip(weights, of_ranks)
        ]
        wire = WIRE["fp32" if i in exact_ones else exchange_dtype]
        exact, bound = bound_of(parts, wire)
        if array.dtype == np.float16:
            bound = bound + 2.0**-11 * (np.abs(exact) + bound) + 2.0**-25
        error = np.abs(array.astype("d").ravel() - exact)
        assert (error <= bound).all(), (i, exchange_dtype, error.max())


def means(comm, seed):
    """Some of all ways to cut them."""
    everything = [
        ["int8", "e5m2", "e4m3", "fp16", "bf16", "fp32"],
        range(1, comm.size + 1),
        [1, 2000, 25 * 2**20],
        [256, 2000, None],
        [0, 200, 2**40],
        [None, [3, 0, 5, 7][: comm.size], [0] * (comm.size - 1) + [2]],
    ]
    choices = random.Random(seed).sample([*itertools.product(*everything)], 12)
    for choice in choices:
        exchange_dtype, local_size, bucket_bytes, chunk_bytes, minimum, n_samples = (
            choice
        )
        of_ranks = [arrays_of(rank) for rank in range(comm.size)]
        arrays = [*of_ranks[comm.rank]]
        of_ranks = [[a.copy() for a in each] for each in of_ranks]
        columns = arrays[5].base.copy()
        with Exchange(
            comm,
            exchange_dtype=exchange_dtype,
            local_size=local_size,
            block=BLOCK,
            bucket_bytes=bucket_bytes,
            chunk_bytes=chunk_bytes,
            minimum=minimum,
            timeout=TIMEOUT,
        ) as exchange:
            exchange.mean(
                arrays, exempt=EXEMPT, n_samples=n_samples and n_samples[comm.rank]
            )
        assert len(set(comm.allgather(bits(arrays)))) == 1, choice
        is_exact = (
            exchange_dtype == "fp32" or minimum > 10**6 or local_size == comm.size
        )
        exact_ones = range(12) if is_exact else EXEMPT
        check_means(arrays, of_ranks, exchange_dtype, n_samples, exact_ones)
        # The numbers between those of a column are nobody's business.
        columns.reshape(50, 3)[:, 1] = arrays[5]
        assert columns.tobytes() == arrays[5].base.tobytes(), choice


@pytest.mark.parametrize("n_ranks", [3, *matrix(2, 4)])
def test_means_are_within_their_bounds(n_ranks):
    assert_on_ranks(n_ranks, means, n_ranks)


def hosts(comm):
    """Ranks of a host need not follow each other, nor be as many as on others."""
    of_host = {3: [0, 1, 0], 4: [0, 1, 1, 0]}[comm.size]
    for names in [of_host, [number == 0 for number in range(comm.size)]]:
        of_ranks = [arrays_of(rank) for rank in range(comm.size)]
        arrays = of_ranks[comm.rank]
        of_ranks = [[a.copy() for a in each] for each in of_ranks]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("socket.gethostname", lambda of=names: str(of[comm.rank]))
            exchange = Exchange(
                comm,
                exchange_dtype="e5m2",
                block=BLOCK,
                chunk_bytes=2000,
                minimum=0,
                timeout=TIMEOUT,
            )
        assert [len(ranks) for ranks in exchange.nodes] in [
            [2, 1],
            [2, 2],
            [1, 2],
            [1, 3],
        ]
        exchange.mean(arrays, exempt=EXEMPT)
        exchange.close()
        assert len(set(comm.allgather(bits(arrays)))) == 1, names
        check_means(arrays, of_ranks, "e5m2")


@pytest.mark.parametrize("n_ranks", [3, 4])
def test_nodes_are_those_of_the_hosts(n_ranks):
    assert_on_ranks(n_ranks, hosts)


def small_buckets(comm):
    """A bucket with fewer coded elements than the minimum goes in float32."""
    sizes = [100, 100, 150, 40, 300]
    of_ranks = [
        [
            np.random.RandomState(9 * r + i).randn(n).astype("f")
            for i, n in enumerate(sizes)
        ]
        for r in range(comm.size)
    ]
    arrays = [array.copy() for array in of_ranks[comm.rank]]
    with Exchange(
        comm,
        exchange_dtype="e5m2",
        local_size=1,
        bucket_bytes=4 * 200,
        minimum=200,
        timeout=TIMEOUT,
    ) as exchange:
        # Buckets: 0 and 1, 2 and 3, of which 190 are coded without 3, and 4.
        exchange.mean(arrays, exempt=[])
    for i, array in enumerate(arrays):
        exact = np.mean([each[i] for each in of_ranks], axis=0, dtype="d")
        is_coded = np.abs(array - exact).max() > 1e-4
        assert is_coded == (i in [0, 1, 4]), i


def test_small_buckets_are_not_coded():
    assert_on_ranks(2, small_buckets)


def not_finite(comm):
    """Only the array with such a number is touched, on all ranks."""
    for exchange_dtype, local_size, chunk_bytes in [
        ("int8", 1, None),
        ("fp16", 1, 2000),
        ("e4m3", 2, 2000),
        ("fp32", 1, None),
    ]:
        for bad, i in itertools.product([np.nan, -np.inf], [1, 7, 9]):
            of_ranks = [arrays_of(rank) for rank in range(comm.size)]
            arrays = of_ranks[comm.rank]
            of_ranks = [[a.copy() for a in each] for each in of_ranks]
            if comm.rank == comm.size - 1:
                arrays[i].flat[3] = bad
            with (
                Exchange(
                    comm,
                    exchange_dtype=exchange_dtype,
                    local_size=local_size,
                    block=BLOCK,
                    bucket_bytes=4000,
                    chunk_bytes=chunk_bytes,
                    minimum=0,
                    timeout=TIMEOUT,
                ) as exchange,
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("error")
                exchange.mean(arrays, exempt=EXEMPT)
            where = exchange_dtype, local_size, bad, i
            assert len(set(comm.allgather(bits(arrays)))) == 1, where
            broken = ~np.isfinite(arrays[i].ravel())
            if exchange_dtype == "fp32" or i in EXEMPT or local_size == comm.size:
                assert broken.nonzero()[0].tolist() == [3], where
            else:
                assert broken.all(), where
            # So that all can be compared with what they must be.
            arrays[i] = np.sum([r[i].astype("d") for r in of_ranks], axis=0) / comm.size
            exact_ones = range(12) if local_size == comm.size else EXEMPT
            check_means(arrays, of_ranks, exchange_dtype, None, exact_ones)


@pytest.mark.parametrize("n_ranks", [3, *matrix(2)])
def test_what_is_not_finite_is_so_on_all_ranks_alone(n_ranks):
    assert_on_ranks(n_ranks, not_finite)


def specs(n=5):
    return tuple(Spec(str(i), (10 + i,), "f", i == 3) for i in range(n))


def missing(comm, local_size):
    """Zeros stand for what a rank has not; what nobody has stays nothing."""
    # Array 0 everywhere, 1 on the first, 2 nowhere, 3 on the second, 4 nowhere.
    has = [{0, 1}, {0, 3}, {0}][: comm.size]
    with Exchange(
        comm,
        exchange_dtype="int8",
        local_size=local_size,
        bucket_bytes=100,
        minimum=0,
        timeout=TIMEOUT,
    ) as exchange:
        for _ in range(2):
            exchange.begin(specs, None, None)
            given = {}
            # In an order of its own, and with looks in between.
            order = [3, 1, 0, 4, 2] if comm.rank else [0, 1, 2, 3, 4]
            for i in order:
                if i in has[comm.rank]:
                    given[i] = np.full(10 + i, comm.rank + 1.0, "f")
                exchange.put(i, given.get(i))
                exchange.look()
            results = exchange.finish()
            assert [r is None for r in results] == [False, False, True, False, True]
            for i, numbers in [
                (0, range(1, comm.size + 1)),
                (1, [1]),
                (3, [2]),
            ]:
                exact = sum(numbers) / comm.size
                np.testing.assert_allclose(results[i], exact, rtol=0.02)
                assert results[i].shape == (10 + i,) and results[i].dtype == "f"
                assert i not in given or results[i] is given[i]


@pytest.mark.parametrize(
    ("n_ranks", "local_size"), [(2, 1), (3, 2), *matrix((2, 2), (3, 1))]
)
def test_zeros_stand_for_what_is_missing(n_ranks, local_size):
    assert_on_ranks(n_ranks, missing, local_size)
