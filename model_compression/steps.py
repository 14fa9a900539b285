"""The steps that the rules of a plan have taken, and those that are taken back.

::

    due    step   wait for the metric   worth it   next step ...
                                        too dear   back by one step; the rule is over
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from model_compression.progress import Progress

_BETTER = ("higher", "lower")


class Steps:
    """The progress of each rule, by its number in the plan.

    Args:
        courses: Course of each rule.
        metric (str): Name of the metric that judges steps; ``None`` for none.
        tolerance (float): Amount by which the metric may become worse; ``None`` for 0.
        better (str): Whether a metric is better ``'higher'`` or ``'lower'``.

    Attributes:
        taken: Number of steps that each rule has taken.

    Raises:
        TypeError, ValueError: If the metric, the tolerance or ``better`` is wrong.

    Example:
        >>> course = Progress((2, "epoch"), (4, "epoch"), 2, "cubic")
        >>> steps = Steps([course])
        >>> steps.due(iteration=30, epoch=3.0)
        {0: 1}
        >>> steps.take({0: 1})
        >>> steps.taken, steps.due(31, 3.1), steps.are_over(0)
        ([1], {}, False)
    """

    def __init__(
        self,
        courses: Sequence[Progress],
        metric: str | None = None,
        tolerance: float | None = None,
        better: str = "higher",
    ) -> None:
        _check_metric(metric, tolerance, better)
        self._courses, self._has_metric = list(courses), metric is not None
        self._better = better
        self._tolerance = 0.0 if tolerance is None else float(tolerance)
        n = len(self._courses)
        self.taken = [0] * n
        # The number of steps of each rule before the last one; whether a rule was ended
        # before its course is; whether the last step of a rule waits to be judged.
        self._taken_before = [0] * n
        self._has_ended, self._awaits = [False] * n, [False] * n
        self._base = float("nan")

    @property
    def has_base(self) -> bool:
        """Whether the metric before the first step is known."""
        return not np.isnan(self._base)

    def due(self, iteration: int, epoch: float) -> dict[int, int]:
        """Returns by rule the step up to which it is to go now.

        Args:
            iteration (int): Number of minibatches so far.
            epoch (float): Number of epochs so far, with a fraction.
        """
        if self._has_metric and (any(self._awaits) or not self.has_base):
            return {}
        found = {}
        for number, course in enumerate(self._courses):
            step = course.due(iteration, epoch)
            if step > self.taken[number] and not self._has_ended[number]:
                # The moments of several steps may have passed; each step is judged for
                # itself.
                found[number] = self.taken[number] + 1 if self._has_metric else step
        return found

    def take(self, steps: Mapping[int, int]) -> None:
        """Records that rules have gone up to a step."""
        for number, step in steps.items():
            self._taken_before[number], self.taken[number] = self.taken[number], step
            self._awaits[number] = self._has_metric

    def judge(self, value: float) -> list[int]:
        """Returns the rules whose last step is to be taken back; they are over then.

        Args:
            value (float): Present value of the metric.
        """
        if not any(self.taken) and not any(self._has_ended):
            self._base = value
        judged = [number for number, awaits in enumerate(self._awaits) if awaits]
        self._awaits = [False] * len(self._awaits)
        worse = self._base - value if self._better == "higher" else value - self._base
        # Steps are also taken back if the metric is NaN.
        if worse <= self._tolerance:
            return []
        for number in judged:
            self._has_ended[number] = True
            self.taken[number] = self._taken_before[number]
        return judged

    def are_over(self, number: int) -> bool:
        """Returns whether a rule takes no more steps, and none is taken back."""
        is_last = self.taken[number] == self._courses[number].steps
        return (is_last or self._has_ended[number]) and not self._awaits[number]

    def serialize(self, serializer: Any) -> None:
        """Reads or writes how far each rule is."""
        for name in ("taken", "_taken_before", "_has_ended", "_awaits"):
            kept = np.array(getattr(self, name))
            setattr(self, name, serializer(name.strip("_"), kept).tolist())
        self._base = float(serializer("base", self._base))


def _check_metric(metric: Any, tolerance: Any, better: str) -> None:
    if metric is not None and not isinstance(metric, str):
        raise TypeError(
            f"metric must be a name that is reported, as 'validation/main/accuracy',"
            f" not {type(metric).__name__}"
        )
    if better not in _BETTER:
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")
    if tolerance is None:
        return
    if metric is None:
        raise ValueError(
            "tolerance needs a metric: give metric='validation/main/accuracy', or"
            " another name that an evaluator reports"
        )
    is_number = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be 0 or more, not {tolerance!r}")
