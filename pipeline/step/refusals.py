"""Refusals to train by objects of one rank, which all ranks learn about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from divisible.communication.errors import DisagreementError
from pipeline.calls.ranks import Ranks

#: The vote of a rank that refuses to train; larger than any other vote.
REFUSED = 2


def refusal_of(vetoes: Iterable[Any]) -> str:
    """Returns the reason why this rank refuses to train; empty if it does not.

    Args:
        vetoes: Objects with a text ``refusal``, which is empty if they do not refuse.
    """
    return next((each.refusal for each in vetoes if each.refusal), "")


def check_refusals(ranks: Ranks, refusal: str) -> None:
    """Refuses a step on all ranks, if one of them refuses.

    The call must have been compared before.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        refusal (str): Reason why this rank refuses; empty if it does not.

    Raises:
        ValueError: If this rank refuses.
        DisagreementError: If another rank refuses.
    """
    if ranks.calls.agreed.vote != REFUSED:
        return
    said = ranks.all_gather(refusal, "to say what they refuse")
    if refusal:
        raise ValueError(refusal)
    rank = next(rank for rank, text in enumerate(said) if text)
    raise DisagreementError(f"rank {rank} refuses to train: {said[rank]}")
