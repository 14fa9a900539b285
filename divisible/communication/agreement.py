"""Arguments that all ranks compare before they begin something together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from divisible.communication.attempts import refuse_together
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError

#: Timeout of a rank whose own arguments are wrong: its given timeout may be wrong, too.
_SECONDS_TO_REFUSE = 60.0


def agree(
    comm: MPI.Comm,
    given: Mapping[str, Any],
    refusal: Exception | None,
    timeout: float,
    purpose: str,
    note: Any = None,
) -> list[Any]:
    """Checks that all ranks were given the same arguments, and that no rank refuses.

    A call of all ranks. When it ends, no other messages have been sent.

    ::

        rank 0   lr=0.1, fine ----.          .--> "rank 1: epochs must be 1 or more"
        rank 1   refuses: epochs -+-- all ---+--> its own error
        rank 2   lr=0.1, fine ----'          '--> "rank 1: epochs must be 1 or more"

    Args:
        comm: The communicator of the ranks.
        given: Arguments that must be equal on all ranks, by name; picklable.
        refusal: The error in this rank's arguments, if there is one. It replaces
            ``given``.
        timeout: Seconds to wait for the other ranks.
        purpose: The purpose of the wait, such as ``'to begin'``, for the error message.
        note: Data for the other ranks; picklable. It is sent even with a refusal.

    Returns:
        The ``note`` of every rank, in rank order.

    Raises:
        DisagreementError: If the ranks differ, or another one refuses.
        Exception: ``refusal``, on its own rank.
        StallError: If another rank does not call this in time.

    Example:
        >>> agree(MPI.COMM_SELF, {"seed": 3}, None, 10, "to begin", note="here")
        ['here']
    """
    text = "" if refusal is None else str(refusal) or type(refusal).__name__
    if refusal is not None:
        # Wrong arguments may be something that cannot be sent.
        given, timeout = {}, _SECONDS_TO_REFUSE
    said = all_gather(comm, (text, dict(given), note), timeout, purpose)
    refuse_together([theirs for theirs, _, _ in said], refusal)
    for rank, (_, theirs, _) in enumerate(said):
        for name, value in said[0][1].items():
            if theirs.get(name, value) != value:
                raise DisagreementError(
                    f"rank 0 has {name}={value!r}, but rank {rank} has {theirs[name]!r}"
                )
    return [theirs for _, _, theirs in said]


def first_difference(said: Sequence[Sequence[str]]) -> str:
    """Returns the first difference between lines of text that should be equal.

    Args:
        said: The lines of each rank. Some ranks must differ.

    Example:
        >>> first_difference([["a", "b"], ["a", "c"]])
        'rank 0 has b, but rank 1 has c'
        >>> first_difference([["a"], ["a"], ["a", "b"]])
        'rank 2 has b, which rank 0 has not'
    """
    for rank, theirs in enumerate(said):
        for line, other in zip(said[0], theirs):
            if line != other:
                return f"rank 0 has {line}, but rank {rank} has {other}"
        if len(theirs) != len(said[0]):
            shorter, longer = sorted([0, rank], key=lambda r: len(said[r]))
            line = said[longer][len(said[shorter])]
            return f"rank {longer} has {line}, which rank {shorter} has not"
    return "ranks differ"
