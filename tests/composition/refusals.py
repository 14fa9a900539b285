"""What a pipeline refuses, with the features that do not go together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.composition.cases import Case


class Refusal(NamedTuple):
    """A pair of features that are refused together.

    Attributes:
        features: The two, in words of the documentation.
        applies: Whether a case has both.
        words: Pattern of the message, which names both.
        reason: Why, for the table.
    """

    features: tuple[str, str]
    applies: Callable[[Case], bool]
    words: str
    reason: str


REFUSALS: tuple[Refusal, ...] = ()


def refusal_of(case: Case, words: str) -> int | None:
    """Returns the number of the refusal that a message is; ``None`` if it is unknown."""
    for number, each in enumerate(REFUSALS):
        if each.applies(case) and re.search(each.words, words, re.DOTALL):
            return number
    return None
