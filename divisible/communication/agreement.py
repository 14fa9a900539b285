"""Arguments that all ranks compare before they begin something together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from divisible.communication.attempts import refuse_together
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError

#: What a rank waits whose own arguments are wrong: one of them may be its timeout.
_SECONDS_TO_REFUSE = 60.0


def agree(
    comm: MPI.Comm,
    given: Mapping[str, Any],
    refusal: Exception | None,
    timeout: float,
    purpose: str,
    note: Any = None,
) -> list[Any]:
    """Sees that all ranks were given the same, and that none refuses it.

    A call of all ranks; nothing else has been sent when it ends.

    ::

        rank 0   lr=0.1, fine ----.          .--> "rank 1: epochs must be 1 or more"
        rank 1   refuses: epochs -+-- all ---+--> its own error
        rank 2   lr=0.1, fine ----'          '--> "rank 1: epochs must be 1 or more"

    Args:
        comm: Of the ranks.
        given: What must be equal, by names; picklable.
        refusal: What is wrong on this rank; ``given`` does not count then.
        timeout: Seconds to wait for the other ranks.
        purpose: What the ranks are waited for to do, for the error message.
        note: What else the others are to know; picklable, also if something is wrong.

    Returns:
        The notes of all ranks, in rank order.

    Raises:
        DisagreementError: If the ranks differ, or another one refuses.
        Exception: ``refusal``, on its own rank.
        StallError: If another rank does not come.

    Example:
        >>> agree(MPI.COMM_SELF, {"seed": 3}, None, 10, "to begin", note="here")
        ['here']
    """
    text = "" if refusal is None else str(refusal) or type(refusal).__name__
    if refusal is not None:
        # It may be something that cannot be sent.
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
    """Returns where lines of text, which should be the same on all ranks, differ first.

    Args:
        said: The lines of each rank; those of some must differ.

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
