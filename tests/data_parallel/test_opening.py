"""The ranks' first words, and what they lead to."""

import numpy as np
import pytest
from mpi4py import MPI

from data_parallel.opening import ALIKE, Opening, checksum
from data_parallel.residuals import NOT_LOADED
from divisible.communication.errors import DisagreementError


def opening(n_samples=None, others=(), **options):
    """Returns that of a rank among others, which have said what is given."""
    made = Opening(
        MPI.COMM_SELF,
        7,
        options.pop("summary", ["array 0"]),
        n_samples,
        options.pop("refusal", ""),
        NOT_LOADED,
        10,
    )
    rows = [made._own]
    for other in others:
        row = made._own.copy()
        for field, value in other.items():
            row[["number", "checksum", "n_samples", "refused"].index(field)] = value
        rows.append(row)
    made._all = np.array(rows)
    return made


def test_ranks_that_agree():
    assert opening(others=[{}, {}]).check() is None
    assert opening(3, [{"n_samples": 0}, {"n_samples": 5}]).check() == [3, 0, 5]
    assert opening().origins() == [NOT_LOADED]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            opening(others=[{"number": 9}]),
            r"different exchanges, by rank: \[7, 9\]: all must make the same calls",
        ),
        (
            opening(3, [{"n_samples": ALIKE}]),
            "given on some ranks, and not on rank 1: give it on all or on none",
        ),
        (opening(0, [{"n_samples": 0}]), "n_samples is 0 on all ranks"),
        (opening(refusal="this is wrong"), "^rank 0: this is wrong$"),
    ],
)
def test_ranks_that_do_not_agree(made, words):
    with pytest.raises(DisagreementError, match=words):
        made.check()


def test_checksums():
    numbers = [checksum(value) for value in (("a",), ("b",), ("a", "b"), ())]
    assert len(set(numbers)) == 4
    # As the same type on all ranks.
    assert all(0 <= number < 2**63 for number in numbers)
    assert checksum(("a",)) == checksum(("a",))
