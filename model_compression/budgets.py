"""The change of a metric that a compression may cost, as a text has it.

::

    accuracy=-0.5     half a point of a percent less, from 0.974 to 0.969
    loss=+0.02        0.02 more
    loss=+2%          two percent of the loss more
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

_FORM = re.compile(
    r"(?P<metric>[^=\s]+)=(?P<sign>[+-])(?P<amount>[0-9.eE-]+)(?P<part>%?)"
)
# Metrics that lie between 0 and 1, and are spoken of in percent.
_IN_POINTS = "accuracy"


class Budget(NamedTuple):
    """A metric, and the amount by which it may become worse.

    Attributes:
        metric: Name of the metric, or the end of its name behind a slash.
        amount: The amount, 0 or more.
        better: The better direction, ``'higher'`` or ``'lower'``.
        is_relative: Whether the amount is a part of the metric before.
    """

    metric: str
    amount: float
    better: str
    is_relative: bool

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads a budget, such as ``accuracy=-0.5`` or ``loss=+2%``.

        A minus allows a metric to fall, so higher is better. Accuracies are in points
        of a percent, unless they have a percent sign.

        Raises:
            ValueError: If the text has another form.

        Example:
            >>> Budget.parse("validation/main/accuracy=-0.5").amount
            0.005
            >>> Budget.parse("loss=+2%")
            Budget(metric='loss', amount=0.02, better='lower', is_relative=True)
        """
        match = _FORM.fullmatch(text.strip())
        amount = _number(match["amount"]) if match else math.nan
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(
                f"{text!r} is no budget: write the metric and its change with a sign,"
                f" such as accuracy=-0.5, loss=+0.02 or loss=+2%"
            )
        is_relative, metric = bool(match["part"]), match["metric"]
        is_in_points = metric.split("/")[-1] == _IN_POINTS
        if is_relative or is_in_points:
            amount /= 100
        better = "higher" if match["sign"] == "-" else "lower"
        return cls(metric, amount, better, is_relative)

    def name_in(self, values: Mapping[str, float]) -> str:
        """Returns the full name of the metric among reported ones.

        Args:
            values: Reported metrics by name.

        Raises:
            ValueError: If none, or several, have the name.

        Example:
            >>> Budget.parse("loss=+1").name_in({"validation/main/loss": 0.5})
            'validation/main/loss'
        """
        if self.metric in values:
            return self.metric
        found = [name for name in values if name.endswith(f"/{self.metric}")]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(values)) or "nothing"
        number = "several" if found else "no"
        raise ValueError(
            f"the evaluators of the trainer report {number} {self.metric!r}, but"
            f" {known}: give --budget one of these names"
        )

    def limit(self, before: float) -> float:
        """Returns the worst value that is within the budget.

        Args:
            before: Value of the metric before the compression.
        """
        amount = self.amount * abs(before) if self.is_relative else self.amount
        return before - amount if self.better == "higher" else before + amount

    def keeps(self, before: float, after: float) -> bool:
        """Returns whether a value is within the budget; none that is not finite is.

        Example:
            >>> budget = Budget.parse("accuracy=-0.5")
            >>> budget.keeps(0.97, 0.966), budget.keeps(0.97, 0.96)
            (True, False)
        """
        if not math.isfinite(after):
            return False
        limit = self.limit(before)
        slack = 1e-9 * max(abs(limit), abs(before))
        if self.better == "higher":
            return after >= limit - slack
        return after <= limit + slack

    def __str__(self) -> str:
        """Returns the budget in the form that is read."""
        sign = "-" if self.better == "higher" else "+"
        is_in_points = self.metric.split("/")[-1] == _IN_POINTS
        scale = 100 if self.is_relative or is_in_points else 1
        percent = "%" if self.is_relative else ""
        return f"{self.metric}={sign}{self.amount * scale:g}{percent}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
