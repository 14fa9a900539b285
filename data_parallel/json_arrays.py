"""Small things of any structure, as the arrays that a serializer takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def as_bytes(value: Any) -> np.ndarray:
    """Returns a value that JSON knows as an array, uint8.

    Example:
        >>> from_bytes(as_bytes({"a": [1, 2.5]}))
        {'a': [1, 2.5]}
    """
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_bytes(array: np.ndarray) -> Any:
    """Returns the value that :func:`as_bytes` made an array of."""
    return json.loads(np.asarray(array).tobytes())
