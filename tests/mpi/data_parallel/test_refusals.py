"""An argument that is wrong on one rank is refused on all, before gradients go."""

import numpy as np
import pytest
from chainer.serializers import DictionarySerializer, NpzDeserializer

from data_parallel import Exchange
from divisible.communication.errors import DisagreementError
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 20
OPTIONS = {"local_size": 1, "minimum": 0, "timeout": TIMEOUT}
PAPER = {"exchange_dtype": "fp8", "strategy": "oyama2017"}

# Of one rank that others do not have: what it says, and what all others do.
DIFFERENT = [
    (
        {"exchange_dtype": "e4m3"},
        "rank 0 has exchange_dtype='int8', but rank 1 has 'e4m3'",
    ),
    ({"block": 32}, "rank 0 has block=256, but rank 1 has 32"),
    ({"bucket_bytes": 1000}, "rank 0 has bucket_bytes=26214400, but rank 1 has 1000"),
    ({"chunk_bytes": 1000}, "rank 0 has chunk_bytes=None, but rank 1 has 1000"),
    ({"local_size": 2}, "rank 0 has local_size=1, but rank 1 has 2"),
    ({"minimum": 7}, "rank 0 has minimum=0, but rank 1 has 7"),
    ({"error_feedback": True}, "rank 0 has error_feedback=False, but rank 1 has True"),
    (PAPER, "rank 0 has exchange_dtype='int8', but rank 1 has 'fp8'"),
    ({"seed": 3}, "rank 0 has seed=0, but rank 1 has 3"),
]
WRONG = [
    ({"block": 24}, ValueError, "block must be a positive multiple of 16, not 24"),
    ({"block": 0}, ValueError, "block must be a positive multiple of 16, not 0"),
    (
        {"strategy": "oyama2017", "exchange_dtype": "int8"},
        ValueError,
        "sends e5m2, not 'int8': give exchange_dtype",
    ),
    ({"exchange_dtype": "int3"}, ValueError, "int4, fp8, not 'int3'"),
    ({**PAPER, "error_feedback": True}, ValueError, "knows no error feedback"),
    ({"timeout": 0}, ValueError, "timeout must be positive, not 0"),
    ({"timeout": "long"}, TypeError, "'str' and 'int'"),
    ({"bucket_bytes": lambda: 3}, TypeError, "bucket_bytes must be an integer"),
]


def constructions(comm):
    for changed, words in DIFFERENT:
        changed = changed if comm.rank == 1 else {}
        with pytest.raises(DisagreementError, match=words):
            Exchange(comm, **{**OPTIONS, **changed})
    for changed, error, words in WRONG:
        changed = changed if comm.rank == 1 else {}
        error = error if comm.rank == 1 else DisagreementError
        with pytest.raises(error, match=words) as caught:
            Exchange(comm, **{**OPTIONS, **changed})
        assert str(caught.value).startswith("rank 1: ") == (comm.rank != 1)
    # A timeout need not be the same.
    with Exchange(comm, **{**OPTIONS, "timeout": TIMEOUT + comm.rank}) as exchange:
        check(exchange, {})


def uneven_nodes(comm):
    """As many ranks on each node, for the paper's two levels."""
    with pytest.raises(DisagreementError, match=r"on each node, not \[1, 2\]: give"):
        Exchange(
            comm,
            exchange_dtype="fp8",
            strategy="oyama2017",
            local_size=2,
            timeout=TIMEOUT,
        )


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_arguments_that_are_refused(n_ranks):
    assert_on_ranks(n_ranks, constructions)


def test_nodes_of_unequal_sizes_are_refused():
    assert_on_ranks(3, uneven_nodes)


def plain():
    return [np.arange(4, dtype="f"), np.ones((2, 3), "f"), np.ones(300, "d")]


class ElsewhereArray:
    """An array on another device."""

    shape, dtype, size = (4,), np.dtype("f"), 4


def with_array(i, array):
    arrays = plain()
    arrays[i] = array
    return {"arrays": arrays}


def read_only():
    array = np.ones(4, "f")
    array.flags.writeable = False
    return array


SHARED = np.ones(4, "f")
# What rank 1 gives instead, and what all say.
DIFFERENT_CALLS = [
    (
        lambda: with_array(1, np.ones((3, 2), "f")),
        r"rank 0 has array 1 of \(2, 3\) and float32, but rank 1 has array 1 of"
        r" \(3, 2\) and float32",
    ),
    (
        lambda: with_array(0, np.ones(4, "e")),
        r"but rank 1 has array 0 of \(4,\) and float16",
    ),
    (
        lambda: {"arrays": plain()[:2]},
        r"rank 0 has array 2 of \(300,\) and float64, which rank 1 has not",
    ),
    (
        lambda: {"arrays": [*plain(), np.ones(7, "f")]},
        r"rank 1 has array 3 of \(7,\) and float32, which rank 0 has not",
    ),
    (lambda: {"arrays": [], "exempt": None}, "which rank 1 has not"),
    (
        lambda: {"exempt": [1]},
        r"rank 0 has array 0 of \(4,\) and float32, exempt, but rank 1 has array 0 of"
        r" \(4,\) and float32\. All ranks must",
    ),
    (lambda: {"n_samples": 3}, "given on some ranks, and not on rank 0: give it on"),
]
WRONG_CALLS = [
    (lambda: {"arrays": None}, TypeError, "not iterable"),
    (
        lambda: with_array(1, [1.0]),
        TypeError,
        "array 1 must be a NumPy or CuPy array, not list",
    ),
    (
        lambda: with_array(0, ElsewhereArray()),
        TypeError,
        "array 0 must be a NumPy or CuPy array, not ElsewhereArray",
    ),
    (
        lambda: with_array(2, np.ones(300, "i")),
        TypeError,
        "array 2 must be float16, float32 or float64, not int32",
    ),
    (lambda: with_array(0, read_only()), ValueError, "array 0 cannot be written"),
    (
        lambda: {"arrays": [SHARED, SHARED[1:]]},
        ValueError,
        "array 1 shares memory with another",
    ),
    (lambda: {"exempt": [3]}, ValueError, "exempt has 3: it must have positions of 3"),
    (lambda: {"n_samples": -1}, ValueError, "n_samples must be 0 or more, not -1"),
    (lambda: {"n_samples": 2.5}, TypeError, "n_samples must be an integer, not 2.5"),
]


def check(exchange, changed, error=None, words=None, **common):
    """Exchanges once, or is refused and leaves all as it was; then it is right."""
    given = {"arrays": plain(), "exempt": [0], **common, **changed}
    arrays = [a for a in given["arrays"] or () if isinstance(a, np.ndarray)]
    before = [array.copy() for array in arrays]
    if error is not None:
        with pytest.raises(error, match=words):
            exchange.mean(**given)
        for array, old in zip(arrays, before):
            assert array.tobytes() == old.tobytes()
        check(exchange, {}, **common)
        return
    exchange.mean(**given)
    for array, old in zip(arrays, before):
        np.testing.assert_allclose(array, old, rtol=0.02)


def calls(comm):
    with Exchange(comm, exchange_dtype="int8", bucket_bytes=100, **OPTIONS) as exchange:
        check(exchange, {})
        for make, words in DIFFERENT_CALLS:
            changed = make() if comm.rank == 1 else {}
            check(exchange, changed, DisagreementError, words)
        for make, error, words in WRONG_CALLS:
            changed = make() if comm.rank == 1 else {}
            error = error if comm.rank == 1 else DisagreementError
            words = words if comm.rank == 1 else f"^rank 1: .*{words}"
            check(exchange, changed, error, words)
        for n_samples, words in [
            ([0, 0, 0], "n_samples is 0 on all ranks: there is nothing to average"),
            ([3, None, 2], "not on rank 1: give it on all or on none"),
        ]:
            changed = {"n_samples": n_samples[comm.rank]}
            check(exchange, changed, DisagreementError, words)
        # In the parts of an exchange as well: it is over.
        changed = [np.ones(3 + (comm.rank == 1), "f")]
        with pytest.raises(DisagreementError):
            exchange.start(changed)
            exchange.finish()
        check(exchange, {})


def calls_of_the_paper(comm):
    weights = {"weights": plain()}
    with Exchange(comm, **PAPER, local_size=1, timeout=TIMEOUT) as exchange:
        check(exchange, {}, **weights)
        for wrong, words in [
            (None, "sends ratios: give weights"),
            (plain()[:2], "weights must have the shapes of the arrays"),
            ([*plain()[:2], np.ones(3, "f")], r"not \[\(4,\), \(2, 3\), \(3,\)\]"),
        ]:
            changed = {"weights": wrong} if comm.rank == 1 else {}
            error = ValueError if comm.rank == 1 else DisagreementError
            check(exchange, changed, error, words, **weights)


@pytest.mark.parametrize(
    ("n_ranks", "case"), [(2, calls), (3, calls), (2, calls_of_the_paper)]
)
def test_calls_that_are_refused(n_ranks, case):
    assert_on_ranks(n_ranks, case)


def other_snapshots(comm):
    with Exchange(comm, exchange_dtype="int8", **OPTIONS) as exchange:
        states = []
        for _ in range(2):
            check(exchange, {})
            serializer = DictionarySerializer()
            exchange.serialize(serializer)
            states.append(serializer.target)
        exchange.serialize(NpzDeserializer(states[comm.rank != 1]))
        words = r"at different exchanges, by rank: \[2, 1\]: all must make the same"
        with pytest.raises(DisagreementError, match=words):
            exchange.mean(plain())
        exchange.serialize(NpzDeserializer(states[1]))
        check(exchange, {})


def test_snapshots_of_different_times_are_refused():
    assert_on_ranks(2, other_snapshots)
