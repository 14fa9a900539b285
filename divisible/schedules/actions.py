"""The vocabulary of schedules: what one rank does in one step.

An action is one computation, written ``2F0``: stage 2, forward, microbatch 0. A
message carries the result of an action to or from another rank, written ``2F0>3``
(sent to rank 3) and ``2F0<1`` (received from rank 1). A message over a skip connection
has its name: with ``0F0.a>3`` stage 0 sends tensor ``a`` to rank 3, past other stages.
Code, logs, tests, error messages and pictures share this notation.

A *group* is one action on consecutive microbatches: ``2W0-3`` computes the weight
gradients of the microbatches 0 to 3 as one product. Messages never join: each carries
the result of one microbatch.

====  =======================================================================
kind  what is computed
====  =======================================================================
F     forward
B     whole backward: I, then W
I     gradients with respect to the stage's input, which the stage before needs
W     gradients with respect to the stage's parameters, which no stage needs
R     forward again, before the backward, where the result of F was not kept
====  =======================================================================
"""

from __future__ import annotations

import re
from typing import NamedTuple, Union

#: The kinds of action; a kind's position here is its code in compact arrays.
KINDS = "FBIWR"
FORWARD, BACKWARD, INPUT, WEIGHT, RECOMPUTE = range(len(KINDS))

#: A stage, a microbatch or a rank, as a regular expression; all fit into 32 bits.
NUMBER = "[0-9]{1,9}"
_WORD = f"{NUMBER}[{KINDS}]{NUMBER}"
_ACTION = re.compile(f"({NUMBER})([{KINDS}])({NUMBER})(?:-({NUMBER}))?")
_MESSAGE = re.compile(rf"({_WORD})(?:\.([^\s<>.]+))?([<>])({NUMBER})")


class ScheduleError(ValueError):
    """A schedule that cannot run. The message shows its grid and the fault."""


class Action(NamedTuple):
    """One computation of one stage on one microbatch, or on several consecutive ones.

    Attributes:
        stage: Position of the stage in the pipeline, from 0.
        kind: ``'F'``, ``'B'``, ``'I'``, ``'W'`` or ``'R'`` (see the module).
        microbatch: Position of the microbatch in the minibatch, from 0. The range of
            them for a group, with a step of 1.

    Example:
        >>> str(Action(2, "F", 0)), str(Action(2, "W", range(4)))
        ('2F0', '2W0-3')
        >>> Action.parse("2F0")
        Action(stage=2, kind='F', microbatch=0)
        >>> Action.parse("2W0-3")
        Action(stage=2, kind='W', microbatch=range(0, 4))
    """

    stage: int
    kind: str
    microbatch: int | range

    @classmethod
    def of(cls, stage: int, kind: str, first: int, count: int) -> Action:
        """Returns an action on some consecutive microbatches, or on one.

        Args:
            stage: See the class.
            kind: See the class.
            first: Position of the first microbatch.
            count: Number of microbatches.
        """
        return cls(stage, kind, first if count == 1 else range(first, first + count))

    @property
    def microbatches(self) -> range:
        """The microbatches of the action, also where there is one."""
        there = self.microbatch
        return there if isinstance(there, range) else range(there, there + 1)

    def __str__(self) -> str:
        there = self.microbatch
        shown = f"{there[0]}-{there[-1]}" if isinstance(there, range) else there
        return f"{self.stage}{self.kind}{shown}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Reads the notation that ``str`` writes.

        Args:
            text: For example ``'2F0'`` or ``'2W0-3'``.

        Returns:
            The action.

        Raises:
            ScheduleError: If ``text`` is anything else.
        """
        match = _ACTION.fullmatch(text.strip())
        first, last = (int(match[3]), match[4]) if match else (0, None)
        count = 1 if last is None else int(last) - first + 1
        if match is None or count < 1 + (last is not None):
            raise ScheduleError(
                f"{text!r} is not an action; write stage, one kind of {KINDS} and "
                "microbatch, such as 2F0, or the first and last microbatch of several, "
                "such as 2W0-3"
            )
        return cls.of(int(match[1]), match[2], first, count)


class Transfer(NamedTuple):
    """The result of an action on its way between two ranks.

    The output of an F goes to the rank of the next stage. The input gradient of a B or
    I goes to the rank of the stage before. A tensor of a skip connection, or its
    gradient, goes from the rank of one end to the rank of the other.

    Attributes:
        action: The action whose result travels.
        peer: The rank at the other end.
        direction: ``'send'`` or ``'receive'``, as seen by the rank that runs it.
        skip: The name of the skip connection, or ``''``.

    Example:
        >>> str(Transfer(Action(2, "F", 0), 3, "send"))
        '2F0>3'
        >>> Transfer.parse("2F0<1").direction
        'receive'
    """

    action: Action
    peer: int
    direction: str
    skip: str = ""

    def __str__(self) -> str:
        skip = f".{self.skip}" if self.skip else ""
        return (
            f"{self.action}{skip}{'>' if self.direction == 'send' else '<'}{self.peer}"
        )

    @classmethod
    def parse(cls, text: str) -> Transfer:
        """Reads the notation that ``str`` writes.

        Args:
            text: For example ``'2F0>3'``, ``'2F0<1'`` or ``'0F0.a>3'``.

        Returns:
            The message.

        Raises:
            ScheduleError: If ``text`` is anything else.
        """
        match = _MESSAGE.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(
                f"{text!r} is not a message; write an action, > (send) or < (receive) "
                "and a rank, such as 2F0>3"
            )
        direction = "send" if match[3] == ">" else "receive"
        return cls(Action.parse(match[1]), int(match[4]), direction, match[2] or "")


class Route(NamedTuple):
    """A skip connection between two stages.

    Attributes:
        name: Name of the connection.
        source: The stage that stashes a tensor.
        target: The later stage that uses the tensor.
    """

    name: str
    source: int
    target: int


#: One entry of a rank's lowered program.
Operation = Union[Action, Transfer]


def parse_operation(text: str) -> Operation:
    """Reads an action or a message.

    Args:
        text: For example ``'2F0'`` or ``'2F0>3'``.

    Returns:
        The action or message.

    Raises:
        ScheduleError: If ``text`` is neither.

    Example:
        >>> [type(parse_operation(text)).__name__ for text in ("2F0", "2F0>3")]
        ['Action', 'Transfer']
    """
    return Transfer.parse(text) if set(text) & {"<", ">"} else Action.parse(text)
