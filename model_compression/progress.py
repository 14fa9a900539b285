"""The course of a compression: its begin, its end, its steps and its curve.

::

    share of the degree          cubic            linear
    1.0 |            ____ ___                       ___
        |       ____|                           ___|
        |    __|                            ___|
        |   |                           ___|
    0.0 |___|                       ___|
          begin          end      begin          end
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Callable, NamedTuple

#: Curves: functions from the elapsed part of the time to the reached part of the
#: degree.
CURVES: dict[str, Callable[[float], float]] = {
    # Equation (1) of Zhu and Gupta, To prune, or not to prune (2017), starting at 0.
    "cubic": lambda way: 1 - (1 - way) ** 3,
    "linear": lambda way: way,
}
_UNITS = ("epoch", "iteration")
_STEPS = 10


class Progress(NamedTuple):
    """The moments at which a rule takes its steps, and the degree after each.

    Attributes:
        begin: Moment of the first step: a number and ``'epoch'`` or ``'iteration'``, as
            for a trigger.
        end: Moment of the last step, in the same unit; ``None`` for one step only.
        steps: Number of steps.
        curve: Key of :data:`CURVES`.
    """

    begin: tuple[float, str]
    end: tuple[float, str] | None
    steps: int
    curve: str

    @classmethod
    def checked(
        cls, begin: Any, end: Any, steps: int | None, curve: str, rule: str
    ) -> Progress:
        """Returns a course with valid arguments.

        Args:
            begin: Moment of the first step.
            end: Moment of the last step; ``None`` for one step only.
            steps: Number of steps; ``None`` for 10, or for 1 without an end.
            curve: Key of :data:`CURVES`.
            rule: The rule, for the error message.

        Raises:
            ValueError: If a moment is not a number and a unit, or the units differ. If
                the end is not after the beginning. If there are no steps, or no such
                curve.
        """
        begin = _moment(begin, "begin", rule)
        if not isinstance(curve, str) or curve not in CURVES:
            raise ValueError(
                f"{rule}: curve must be one of {', '.join(CURVES)}, not {curve!r}"
            )
        if end is None:
            if steps not in (None, 1):
                raise ValueError(
                    f"{rule}: {steps} steps need an end: give end=(n, {begin[1]!r})"
                )
            return cls(begin, None, 1, curve)
        end = _moment(end, "end", rule)
        if begin[1] != end[1]:
            raise ValueError(
                f"{rule}: it begins at {_words(begin)} and ends at {_words(end)}: give"
                f" both in the same unit"
            )
        if end[0] <= begin[0]:
            raise ValueError(
                f"{rule}: it ends at {_words(end)}, but begins at {_words(begin)}:"
                f" leave end out for one step"
            )
        steps = _STEPS if steps is None else steps
        if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 2:
            raise ValueError(
                f"{rule}: steps must be 2 or more up to an end, not {steps!r}; leave"
                f" end out for one step"
            )
        return cls(begin, end, int(steps), curve)

    def due(self, iteration: int, epoch: float) -> int:
        """Returns the number of steps that should have been taken by now.

        Args:
            iteration: Number of minibatches so far.
            epoch: Number of epochs so far, with a fraction: ``updater.epoch_detail``.

        Example:
            >>> course = Progress((2, "iteration"), (6, "iteration"), 3, "linear")
            >>> [course.due(iteration, 0.0) for iteration in range(1, 8)]
            [0, 1, 1, 2, 2, 3, 3]
        """
        now = epoch if self.begin[1] == "epoch" else iteration
        if now < self.begin[0]:
            return 0
        if self.end is None:
            return 1
        way = (now - self.begin[0]) / (self.end[0] - self.begin[0])
        # A step exactly at its moment counts, even if the moment was rounded.
        return min(self.steps, 1 + math.floor(way * (self.steps - 1) + 1e-9))

    def share(self, step: int) -> float:
        """Returns the part of the whole degree after a step, from 0 to 1.

        Example:
            >>> course = Progress((0, "epoch"), (9, "epoch"), 4, "cubic")
            >>> [round(course.share(step), 3) for step in range(5)]
            [0.0, 0.578, 0.875, 0.984, 1.0]
        """
        return CURVES[self.curve](step / self.steps)

    def __str__(self) -> str:
        """Returns the course as text."""
        if self.end is None:
            return f"at {_words(self.begin)}"
        return (
            f"{self.steps} steps, {self.curve}, from {_words(self.begin)} to"
            f" {_words(self.end)}"
        )


def _moment(value: Any, name: str, rule: str) -> tuple[float, str]:
    try:
        number, unit = value
        is_one = unit in _UNITS and isinstance(number, Real)
        is_one = is_one and not isinstance(number, bool)
        is_one = is_one and math.isfinite(number) and number >= 0
    except (TypeError, ValueError):
        is_one = False
    if not is_one:
        raise ValueError(
            f"{rule}: {name} must be a number and 'epoch' or 'iteration', as (2,"
            f" 'epoch'), not {value!r}"
        )
    # JSON does not accept NumPy's numbers.
    return (int if isinstance(number, Integral) else float)(number), unit


def _words(moment: tuple[float, str]) -> str:
    return f"{moment[1]} {moment[0]:g}"
