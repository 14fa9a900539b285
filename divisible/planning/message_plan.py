"""The dtypes of messages between stages, as a plan has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from divisible.communication.narrowing import Pair
from divisible.communication.wire import check_wire_dtype
from divisible.records import plain_text

#: The dtype of messages that are not narrowed.
WHOLE = "fp32"


@dataclass(frozen=True)
class MessagePlan:
    """The dtypes of messages over an edge between two stages.

    Attributes:
        forward: Name of the dtype of activations.
        backward: Name of the dtype of gradients.
        reason: Text about why they were chosen.

    Raises:
        ValueError: If a name is not in the catalogue.
        TypeError: If the reason is not a text.

    Example:
        >>> print(MessagePlan("int8", "fp32"))
        int8 forward, fp32 backward
    """

    forward: str = WHOLE
    backward: str = WHOLE
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_wire_dtype("forward of a message plan", self.forward)
        check_wire_dtype("backward of a message plan", self.backward)
        plain_text("reason of a message plan", self.reason)

    @property
    def is_narrowed(self) -> bool:
        """Whether messages of either direction are narrowed."""
        return self.pair != (WHOLE, WHOLE)

    @property
    def pair(self) -> Pair:
        """The two names."""
        return self.forward, self.backward

    def __str__(self) -> str:
        if self.forward == self.backward:
            return self.forward
        return f"{self.forward} forward, {self.backward} backward"


def as_plans(pairs: Sequence[Pair]) -> tuple[MessagePlan, ...]:
    """Returns the plans of edges whose dtypes are given, without reasons."""
    return tuple(MessagePlan(*pair) for pair in pairs)


def narrowed_pairs(plans: Sequence[MessagePlan]) -> tuple[Pair, ...]:
    """Returns the dtypes of all edges; none if no message is narrowed."""
    is_any = any(each.is_narrowed for each in plans)
    return tuple(each.pair for each in plans) if is_any else ()


def message_lines(messages: Sequence[MessagePlan]) -> list[str]:
    """Returns a line about the dtypes of messages over each edge, with the reason.

    Example:
        >>> message_lines([MessagePlan("int8", "int8", "the link is slow")])
        ['messages between stages 0 and 1: int8; the link is slow']
    """
    return [
        f"messages between stages {edge} and {edge + 1}:"
        f" {'; '.join(filter(None, [str(each), each.reason]))}"
        for edge, each in enumerate(messages)
    ]
