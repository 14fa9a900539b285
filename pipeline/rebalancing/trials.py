"""Changes on trial, which are reversed if steps do not become shorter. No messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from divisible.planning.units import count, format_seconds

#: Steps that take this much longer show that hosts have changed.
_CHANGED = 1.25
#: Most checks without a change, after changes that were reversed one after another.
_MOST_CHECKS = 16


class ChangeChoice(NamedTuple):
    """The change to make now.

    Attributes:
        target: New cuts, or shares; ``None`` to stay.
        reason: Text about why it differs from the wanted change; ``None`` if it does
            not.
        goes_back: Whether it reverses the last change.
    """

    target: list | None
    reason: str | None = None
    goes_back: bool = False


class ChangesOnTrial:
    """Allows wanted changes of cuts or shares; reverses those that do not pay.

    A speed is measured with the work that a rank has. With more work, the rank may be
    slower than in proportion. Limits on the share of a core, credits for bursts, and a
    processor that slows down when it is hot affect only long work. Changes wanted by
    such speeds would come and go for ever::

        check    1       2              3         4         5            6
        change   there   back, longer   -         there     back         -  -  ...
                                        1 pause             2 pauses, then 4, 8, 16

    A change that makes steps shorter ends the pauses. So does a step that takes a
    quarter longer than when a change was reversed: then hosts have changed.

    Example:
        >>> trial = ChangesOnTrial()
        >>> trial.choose(wanted=[0, 3, 4], now=[0, 2, 4], seconds=0.5)
        ChangeChoice(target=[0, 3, 4], reason=None, goes_back=False)
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
        """Ends a trial, because former steps do not compare with new ones."""
        # Cuts or shares before the change on trial.
        self._origin: list | None = None
        # Seconds of a step before the last change, or when one was reversed.
        self._seconds = 0.0
        self._pause = self._next_pause = 0

    @property
    def is_open(self) -> bool:
        """Whether the next check must judge a change."""
        return self._origin is not None

    def choose(
        self, wanted: Sequence[Any] | None, now: Sequence[Any], seconds: float
    ) -> ChangeChoice:
        """Returns the change to make now; to be called once at each check.

        Args:
            wanted: Cuts or shares that the speeds suggest; ``None`` for the present
                ones.
            now: Present cuts or shares.
            seconds: Seconds of a step since the last check.
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
            return ChangeChoice(None)
        self._origin, self._seconds = list(now), seconds
        return ChangeChoice(list(wanted))

    def _judge(self, wanted: Sequence[Any] | None, seconds: float) -> ChangeChoice:
        origin, self._origin = self._origin, None
        if seconds < self._seconds:
            self._next_pause = 0
            return _stay(wanted, "the last check has seen a change")
        self._pause = self._next_pause = min(max(1, 2 * self._next_pause), _MOST_CHECKS)
        return ChangeChoice(
            origin,
            f"a step took {format_seconds(self._seconds)} before the last change, and"
            f" takes {format_seconds(seconds)} since, which is taken back",
            goes_back=True,
        )


def _stay(wanted: Sequence[Any] | None, reason: str) -> ChangeChoice:
    return ChangeChoice(None, None if wanted is None else reason)
