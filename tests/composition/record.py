"""The record of a run: results of its calls, and its state in the end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Entry(NamedTuple):
    """Results of a call, or gradients of a minibatch.

    Attributes:
        name: Name of the call.
        values: Numbers and arrays by name.
    """

    name: str
    values: dict[str, Any]


class Record:
    """The entries of a run, and its state.

    Attributes:
        entries: One for each call, in order.
        state: Arrays by name.
        skipped: Numbers of minibatches whose update a loss scale has skipped.
        rounded: The largest gradient before hooks.
        hooked: The largest gradient behind them.
        reported: The largest number of which layers have reported a mean.
        diverges_at: Number of the first entry for which there were numbers that the
            dtype of the model may lack; infinite if there were none.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.state: dict[str, Any] = {}
        self.skipped: list[int] = []
        self.rounded = self.hooked = self.reported = 0.0
        self.diverges_at = math.inf

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Adds what a call has returned."""
        copies = {key: np.array(value) for key, value in values.items()}
        self.entries.append(Entry(name, copies))

    def keep_state(self, arrays: dict[str, Any]) -> None:
        """Keeps the state at the end."""
        self.state = {key: np.array(value) for key, value in arrays.items()}
