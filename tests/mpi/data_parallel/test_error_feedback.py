"""Error feedback gives back what encodings lose, over snapshots too."""

import itertools
import warnings
from functools import partial

import numpy as np
import pytest
from chainer.serializers import DictionarySerializer, NpzDeserializer

from data_parallel import Exchange, simulate_exchange
from data_parallel.arrays import specs_of
from divisible.communication.errors import DisagreementError
from divisible.communication.wire import WIRE
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 30
N = 1000
OPTIONS = {"minimum": 0, "block": 64, "error_feedback": True, "timeout": TIMEOUT}


def gradients_of(step, n_ranks, n=N):
    """One for each rank, of far magnitudes."""
    random = np.random.RandomState(step)
    return [
        (random.standard_normal(n) * 10.0 ** (rank - 1)).astype("f")
        for rank in range(n_ranks)
    ]


def residual_of(exchange, name="0"):
    return exchange.kept.residuals[name]


def as_simulated(comm):
    """Also for a rank without samples, and for nodes of several ranks."""
    for local_size in range(1, comm.size):
        for exchange_dtype in ["int8", "e5m2", "fp16", "fp32"]:
            with Exchange(
                comm,
                exchange_dtype=exchange_dtype,
                local_size=local_size,
                chunk_bytes=512,
                **OPTIONS,
            ) as exchange:
                residuals = [np.zeros(N, "f")] * comm.size
                for step in range(3):
                    n_samples = [None, [3, 0, 5, 7][: comm.size], None][step]
                    gradients = gradients_of(step, comm.size)
                    expected = simulate_exchange(
                        gradients,
                        exchange_dtype=exchange_dtype,
                        local_size=local_size,
                        block=64,
                        n_samples=n_samples,
                        residuals=residuals,
                    )
                    residuals = expected.residuals
                    array = gradients[comm.rank]
                    exchange.mean([array], n_samples=n_samples and n_samples[comm.rank])
                    where = local_size, exchange_dtype, step
                    assert array.tobytes() == expected.mean.tobytes(), where
                    kept = residual_of(exchange).tobytes()
                    assert kept == residuals[comm.rank].tobytes(), where


@pytest.mark.parametrize("n_ranks", [3, *matrix(2, 4)])
def test_residuals_are_as_simulated(n_ranks):
    assert_on_ranks(n_ranks, as_simulated)


def sums(comm):
    """Over many steps what is applied adds up as the exact means do, but for once.

    The gradients of one rank are zeros, so that the rounding of the sum costs nothing.
    """
    found = {}
    for is_fed_back in [False, True]:
        options = {**OPTIONS, "error_feedback": is_fed_back}
        exact, total, errors = np.zeros(N), np.zeros(N), []
        with Exchange(comm, exchange_dtype="e5m2", local_size=1, **options) as exchange:
            for step in range(60):
                gradients = gradients_of(step % 3, comm.size)
                gradients[1][:] = 0
                exact += np.mean(gradients, axis=0, dtype="d")
                array = gradients[comm.rank]
                exchange.mean([array])
                total += array
                errors.append(np.abs(total - exact).max())
        found[is_fed_back] = errors
    # Without it the same is lost again and again.
    assert found[False][-1] > 15 * found[False][2]
    assert max(found[True]) < 3 * found[True][2]


def test_what_is_lost_comes_back():
    assert_on_ranks(2, sums)


def not_finite(comm):
    """A number that is not finite, coded or exempt, on one rank: the step is none."""
    with Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
        for bad, exempt in [(0, None), (1, [1])]:
            arrays = [gradients_of(i, comm.size)[comm.rank] for i in range(2)]
            exchange.mean(arrays, exempt=exempt)
            kept = [residual_of(exchange, name).copy() for name in "01"]
            assert kept[0].any() and kept[1].any() == (exempt is None)
            arrays = [gradients_of(i, comm.size)[comm.rank] for i in range(2)]
            if comm.rank == 1:
                arrays[bad][7] = [np.nan, np.inf][bad]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exchange.mean(arrays, exempt=exempt)
            assert not np.isfinite(arrays[bad]).all()
            assert np.isfinite(arrays[1 - bad]).all()
            for name, before in zip("01", kept):
                assert residual_of(exchange, name).tobytes() == before.tobytes()


def test_a_step_that_is_not_finite_leaves_them():
    assert_on_ranks(2, not_finite)


def not_finite_in_all_dtypes(comm):
    """Goes on as if there had been no such step, in each dtype and on each node."""
    for exchange_dtype, local_size in itertools.product(WIRE, range(1, comm.size + 1)):
        found = []
        for skips in (False, True):
            with Exchange(
                comm, exchange_dtype=exchange_dtype, local_size=local_size, **OPTIONS
            ) as each:
                for step in range(4):
                    gradients = gradients_of(step, comm.size)
                    if step == 2 and not skips:
                        continue
                    if step == 2:
                        gradients[-1][7] = np.inf
                    array = gradients[comm.rank]
                    each.mean([array])
                    if step == 2:
                        assert not np.isfinite(array[7])
                found.append(array)
        np.testing.assert_array_equal(*found, err_msg=f"{exchange_dtype} {local_size}")


def test_a_step_that_is_not_finite_is_none_in_all_dtypes():
    assert_on_ranks(2, not_finite_in_all_dtypes)


def quantiles_not_finite(comm):
    """Quantiles of gradients that have overflown are not kept for the next ones."""
    gradients, weights = gradients_of(0, comm.size), np.ones(N, "f")
    expected = simulate_exchange(
        gradients, exchange_dtype="fp8", strategy="oyama2017", weights=weights
    )
    options = {"strategy": "oyama2017", "local_size": 1, "every": 100}
    with Exchange(comm, exchange_dtype="fp8", **options, timeout=TIMEOUT) as exchange:
        overflown = np.full(N, np.inf, "f")
        exchange.mean([overflown], weights=[weights])
        assert not np.isfinite(overflown).any()
        array = gradients[comm.rank]
        exchange.mean([array], weights=[weights])
    assert array.tobytes() == expected.mean.tobytes()


def test_quantiles_of_what_is_not_finite_are_not_kept():
    assert_on_ranks(2, quantiles_not_finite)


def refused(comm):
    """An exchange that is refused is none."""
    with Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
        exchange.mean([gradients_of(0, comm.size)[comm.rank]])
        kept = residual_of(exchange).copy()
        with pytest.raises(DisagreementError):
            exchange.mean([np.ones(N + comm.rank, "f")])
        array = gradients_of(1, comm.size)[comm.rank]
        expected = simulate_exchange(
            gradients_of(1, comm.size),
            exchange_dtype="int8",
            block=64,
            residuals=comm.allgather(kept),
        )
        exchange.mean([array])
        assert array.tobytes() == expected.mean.tobytes()


def test_an_exchange_that_is_refused_leaves_them():
    assert_on_ranks(2, refused)


def of_no_rank(comm):
    """An array that no rank has is none: what it has lost is not lost with it."""
    arrays = [gradients_of(i, comm.size)[comm.rank] for i in range(2)]
    for exempt in (None, [0]):
        with Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
            exchange.mean([array.copy() for array in arrays])
            kept = [residual_of(exchange, name).copy() for name in "01"]
            assert kept[0].any() and kept[1].any()
            exchange.begin(partial(specs_of, arrays, exempt), None, None)
            exchange.put(0, None)
            exchange.put(1, arrays[1].copy() if comm.rank == 0 else None)
            means = exchange.finish()
            assert [mean is None for mean in means] == [True, False]
            are_kept = [
                residual_of(exchange, name).tobytes() == before.tobytes()
                for name, before in zip("01", kept)
            ]
            assert are_kept == [True, False]


def test_an_array_that_no_rank_has_leaves_its_own():
    assert_on_ranks(2, of_no_rank)


def saved(exchange):
    serializer = DictionarySerializer()
    exchange.serialize(serializer)
    return {name: np.array(value) for name, value in serializer.target.items()}


def same_ranks(comm):
    """A new exchange that has loaded goes on as the old one would have."""
    gradients = [gradients_of(step, comm.size) for step in range(4)]
    with Exchange(comm, exchange_dtype="e4m3", local_size=1, **OPTIONS) as exchange:
        for each in gradients[:2]:
            exchange.mean([each[comm.rank].copy()])
        state = saved(exchange)
        expected = [each[comm.rank].copy() for each in gradients[2:]]
        for array in expected:
            exchange.mean([array])
    with Exchange(comm, exchange_dtype="e4m3", local_size=1, **OPTIONS) as exchange:
        exchange.serialize(NpzDeserializer(state))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for each, array in zip(gradients[2:], expected):
                exchange.mean([each[comm.rank]])
                assert each[comm.rank].tobytes() == array.tobytes()


def other_ranks(comm):
    """Those of two go on on one, three and four: each gets the mean."""
    states, residuals = None, None
    two = comm.Split(comm.rank < 2, comm.rank)
    if comm.rank < 2:
        with Exchange(two, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
            exchange.mean([gradients_of(0, 2)[comm.rank]])
            states = two.allgather(saved(exchange))
            residuals = two.allgather(residual_of(exchange))
    two.Free()
    states, residuals = comm.bcast((states, residuals))
    for n in [1, 3, 4]:
        some = comm.Split(comm.rank < n, comm.rank)
        if comm.rank < n:
            loaded = residuals[: min(n, 2)]
            mean = (np.sum(loaded, axis=0) / np.float32(len(loaded))).astype("f")
            expected = [mean] * n
            # In nodes of two another rank encodes a part of what this one has loaded.
            local_size = 2 if n == 4 else 1
            options = {"local_size": local_size, **OPTIONS}
            with (
                Exchange(some, exchange_dtype="int8", **options) as exchange,
                warnings.catch_warnings(record=True) as found,
            ):
                warnings.simplefilter("always")
                exchange.serialize(NpzDeserializer(states[comm.rank % 2]))
                for step in range(1, 4):
                    gradients = gradients_of(step, n)
                    array = gradients[comm.rank].copy()
                    exchange.mean([array])
                    result = simulate_exchange(
                        gradients,
                        exchange_dtype="int8",
                        local_size=local_size,
                        block=64,
                        residuals=expected,
                    )
                    expected = result.residuals
                    assert array.tobytes() == result.mean.tobytes(), (n, step)
            texts = [str(each.message) for each in found]
            assert len(texts) == (n == 1 and comm.rank == 0), texts
            assert all(
                "kept of rank 1 of 2 was not loaded" in text for text in texts
            ), texts
        some.Free()


def exchanged_ranks(comm):
    """Ranks that load each other's are as others: all get the mean."""
    with Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
        exchange.mean([gradients_of(0, comm.size)[comm.rank]])
        states = comm.allgather(saved(exchange))
        residuals = comm.allgather(residual_of(exchange))
        exchange.serialize(NpzDeserializer(states[1 - comm.rank]))
        array = np.zeros(N, "f")
        exchange.mean([array])
    before = (residuals[0] + residuals[1]) / np.float32(2)
    zeros = [np.zeros(N, "f")] * 2
    expected = simulate_exchange(
        zeros, exchange_dtype="int8", block=64, residuals=[before] * 2
    )
    assert array.tobytes() == expected.mean.tobytes()


def other_model(comm):
    """Residuals of another size are refused, on all ranks."""
    with Exchange(comm, exchange_dtype="int8", local_size=1, **OPTIONS) as exchange:
        exchange.mean([gradients_of(0, comm.size)[comm.rank]])
        state = saved(exchange)
        before = {name: value.copy() for name, value in state.items()}
        exchange.serialize(NpzDeserializer(state))
        words = "error feedback of 1000 elements for array 0, which has 999: it is of"
        error = ValueError if comm.rank == 1 else DisagreementError
        with pytest.raises(error, match=words):
            exchange.mean([np.ones(N - (comm.rank == 1), "f")])
        for _ in range(2):
            exchange.mean([gradients_of(1, comm.size)[comm.rank]])
        # The snapshot can be loaded again.
        assert all(state[name].tobytes() == before[name].tobytes() for name in state)


@pytest.mark.parametrize(
    ("n_ranks", "case"),
    [(2, same_ranks), (2, exchanged_ranks), (2, other_model), (4, other_ranks)],
)
def test_they_outlast_a_snapshot(n_ranks, case):
    assert_on_ranks(n_ranks, case)
