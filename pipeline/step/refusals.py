"""Refusals to train, by objects of one rank, of which all ranks hear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from divisible.communication.errors import DisagreementError
from pipeline.calls.ranks import Ranks

#: The vote of a rank that refuses to train; it counts more than any other vote.
REFUSED = 2


def refusal_of(vetoes: Iterable[Any]) -> str:
    """Returns why this rank refuses to train; empty if it does not.

    Args:
        vetoes: Objects with a text ``refusal``, which is empty if one does not.
    """
    return next((each.refusal for each in vetoes if each.refusal), "")


def check_refusals(ranks: Ranks, refusal: str) -> None:
    """Refuses a step on all ranks, if one of them does.

    To be called when the call has been compared.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        refusal (str): Why this rank does; empty if it does not.

    Raises:
        ValueError: If this rank does.
        DisagreementError: If another one does.
    """
    if ranks.calls.agreed.vote != REFUSED:
        return
    said = ranks.all_gather(refusal, "to say what they refuse")
    if refusal:
        raise ValueError(refusal)
    rank = next(rank for rank, text in enumerate(said) if text)
    raise DisagreementError(f"rank {rank} refuses to train: {said[rank]}")
