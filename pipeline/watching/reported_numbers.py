"""The numbers among the values that a minibatch reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.step.late_dict import LateDict, LateValue

# Most numbers that are kept, and names that the state of a run has in other ways.
_MOST_VALUES, _NOT_KEPT = 20, "pipeline/"


def numbers_of(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the numbers among reported values, as Python's own.

    Infinity and NaN become ``None``.

    Example:
        >>> values = {"main/loss": 0.5, "pipeline/bubble": 0.1, "name": "a", "x": 1e300}
        >>> numbers_of(values)
        {'main/loss': 0.5, 'x': None}
    """
    if isinstance(values, LateDict):
        values = values.unread()
    found = {}
    for name, value in values.items():
        if len(found) == _MOST_VALUES or str(name).startswith(_NOT_KEPT):
            continue
        try:
            if isinstance(value, LateValue):
                value = value.value()
            number = float(getattr(value, "array", value))
        except (TypeError, ValueError):
            continue
        # JSON has neither infinity nor NaN.
        found[str(name)] = number if abs(number) < 2**63 else None
    return found
