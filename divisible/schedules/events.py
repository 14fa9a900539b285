"""The events of a timeline, and their kinds."""

from __future__ import annotations

from typing import NamedTuple

from divisible.schedules.actions import KINDS, Action, Transfer

#: Categories of events. The computations come first, in the order of `KINDS`.
CATEGORIES = (*KINDS, "send", "receive", "wait", "update", "other")
#: The positions of the other categories in `CATEGORIES`.
SEND, RECEIVE, WAIT, UPDATE, OTHER = range(len(KINDS), len(CATEGORIES))

#: Name of an event in which layers move. Their positions follow it.
MOVE = "move of layers"


class Event(NamedTuple):
    """One bar of a timeline.

    Attributes:
        rank: The rank on which it happened.
        what: The action, the message, or any other text, such as ``'update'``.
        start: Start in seconds.
        end: End in seconds.
        category: One of `CATEGORIES`. A wait for a message names that message.
    """

    rank: int
    what: Action | Transfer | str
    start: float
    end: float
    category: str
