"""Changes on trial: what makes no step shorter is taken back. No messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from divisible.planning.units import count, format_seconds

#: Steps that take so many times as long as they did are those of other hosts.
_CHANGED = 1.25
#: Checks in which nothing changes after changes that were taken back one after another.
_MOST_CHECKS = 16


class Choice(NamedTuple):
    """The change to make now.

    Attributes:
        target: The new cuts, or shares; ``None`` to stay.
        reason: Why it is not what was wanted; ``None`` where it is.
        goes_back: Whether it is what was before the last change.
    """

    target: list | None
    reason: str | None = None
    goes_back: bool = False


class ChangesOnTrial:
    """Lets cuts, or shares, change as wanted, but back where steps became no shorter.

    A speed tells what a rank does with the work that it has. With more of it the rank
    may be slower than in proportion: a share of a core, credits for bursts, and a
    processor that slows down when it is hot all leave short work alone. What is wanted
    by such speeds would come and go for ever::

        check    1       2              3         4         5            6
        change   there   back, longer   -         there     back         -  -  ...
                                        1 pause             2 pauses, then 4, 8, 16

    A change that pays ends that, as does a step that takes a quarter longer than when
    one was taken back: then hosts have changed, and nothing pauses.

    Example:
        >>> trial = ChangesOnTrial()
        >>> trial.choose(wanted=[0, 3, 4], now=[0, 2, 4], seconds=0.5)
        Choice(target=[0, 3, 4], reason=None, goes_back=False)
        >>> trial.choose(wanted=None, now=[0, 3, 4], seconds=0.6).target
        [0, 2, 4]
        >>> print(trial.choose(wanted=[0, 3, 4], now=[0, 2, 4], seconds=0.5).reason)
        nothing changes for 1 check, as the last change made no step shorter
        >>> trial.choose(wanted=[0, 3, 4], now=[0, 2, 4], seconds=0.5).target
        [0, 3, 4]
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Ends what is on trial, where steps no longer do what they did before."""
        # From where the change was that is on trial.
        self._origin: list | None = None
        # Of a step: before the last change, or where one was taken back.
        self._seconds = 0.0
        self._pause = self._next_pause = 0

    @property
    def is_open(self) -> bool:
        """Whether there was a change that the next check is to judge."""
        return self._origin is not None

    def choose(
        self, wanted: Sequence[Any] | None, now: Sequence[Any], seconds: float
    ) -> Choice:
        """Returns what to change to; to be called once at each check.

        Args:
            wanted: What the speeds speak for; ``None`` for what is now.
            now: The cuts, or shares, of now.
            seconds: That a step has taken since the last check.
        """
        if self._origin is not None:
            return self._judge(wanted, seconds)
        if self._pause and seconds > _CHANGED * self._seconds:
            self._pause = self._next_pause = 0
        if self._pause:
            self._pause -= 1
            checks = count(self._pause + 1, "check")
            return _stay(
                wanted,
                f"nothing changes for {checks}, as the last change made no step"
                f" shorter",
            )
        if wanted is None:
            return Choice(None)
        self._origin, self._seconds = list(now), seconds
        return Choice(list(wanted))

    def _judge(self, wanted: Sequence[Any] | None, seconds: float) -> Choice:
        origin, self._origin = self._origin, None
        if seconds < self._seconds:
            self._next_pause = 0
            return _stay(wanted, "the last check has seen a change")
        self._pause = self._next_pause = min(max(1, 2 * self._next_pause), _MOST_CHECKS)
        return Choice(
            origin,
            f"a step took {format_seconds(self._seconds)} before the last change, and"
            f" takes {format_seconds(seconds)} since, which is taken back",
            goes_back=True,
        )


def _stay(wanted: Sequence[Any] | None, reason: str) -> Choice:
    return Choice(None, None if wanted is None else reason)
