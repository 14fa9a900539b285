"""The events of a timeline, and their kinds."""

from __future__ import annotations

from typing import NamedTuple

from divisible.schedules.actions import KINDS, Action, Transfer

#: What an event can be. The computations come first, in the order of `KINDS`.
CATEGORIES = (*KINDS, "send", "receive", "wait", "other")
#: The positions of the others in it.
SEND, RECEIVE, WAIT, OTHER = range(len(KINDS), len(CATEGORIES))

#: What a move of layers is called, before their positions.
MOVE = "move of layers"


class Event(NamedTuple):
    """One bar of a timeline.

    Attributes:
        rank: Where it happened.
        what: The action, the message, or any other text.
        start: Seconds.
        end: Seconds.
        category: One of `CATEGORIES`. A wait for a message names that message.
    """

    rank: int
    what: Action | Transfer | str
    start: float
    end: float
    category: str
