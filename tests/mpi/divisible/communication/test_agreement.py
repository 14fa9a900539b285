"""What ranks compare before they begin together."""

import pytest

from divisible.communication.agreement import agree
from divisible.communication.errors import DisagreementError
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 20


def agreements(comm):
    def call(given, refusal=None):
        return agree(comm, given, refusal, TIMEOUT, "to begin", note=comm.rank)

    assert call({"a": 1}) == list(range(comm.size))
    # What refuses may have something that cannot be sent, and nothing to say.
    refusals = {1: ValueError("a must be less"), 2: KeyError()}
    for wrong, error in refusals.items():
        mine = error if comm.rank == wrong else None
        words = "^rank 1: a must be less$" if wrong == 1 else "^rank 2: KeyError$"
        with pytest.raises(type(mine) if mine else DisagreementError) as caught:
            call({"a": lambda: 3} if mine else {"a": 1}, mine)
        if mine:
            assert caught.value is mine
        else:
            assert caught.match(words)
    words = "^rank 0 has b=2, but rank 1 has 3$"
    with pytest.raises(DisagreementError, match=words):
        call({"a": 1, "b": 3 if comm.rank == 1 else 2})
    assert call({}) == list(range(comm.size))


def test_all_ranks_agree_or_raise():
    assert_on_ranks(3, agreements)
