"""Dropout masks of a group of microbatches: those that each would have alone.

A layer that runs once for a group calls each of its dropouts once. The rows of each
microbatch are drawn from the stream of that microbatch, which goes on with the next
dropout of the layer::

                     stream of 4     stream of 5     stream of 6
    first dropout    rows of 4       rows of 5       rows of 6      one mask
    second dropout   rows of 4       rows of 5       rows of 6      one mask
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer.functions.noise.dropout import Dropout

from chainer_kernels.functions.dropout import drawn_mask
from chainer_kernels.layouts import empty_like
from divisible.random_streams import RandomKey, begin_stream


class NoRowsError(TypeError):
    """The input of a dropout has no rows for each sample."""


class GroupMasks(chainer.FunctionHook):
    """Draws the masks of ``F.dropout`` in one call of a layer, on a CPU.

    Args:
        keys (sequence of RandomKey): The key of each microbatch.
        counts (sequence of int): The samples of each microbatch.
        position (int): Position of the layer in the undivided model.
    """

    name = "pipeline.GroupMasks"
    # The hook changes no array, so prepared weights need no checks.
    only_reads = True

    def __init__(
        self, keys: Sequence[RandomKey], counts: Sequence[int], position: int
    ) -> None:
        self._keys, self._position = keys, position
        self._edges = [0, *np.cumsum(counts).tolist()]
        # Where the stream of each microbatch goes on.
        self._states: list[Any] = [None] * len(keys)

    def forward_preprocess(self, function: Any, in_data: tuple) -> None:
        """Is called by every function.

        Raises:
            NoRowsError: If the input of a dropout has no rows for each sample.
        """
        if not isinstance(function, Dropout) or function.mask is not None:
            return
        x = in_data[0]
        if isinstance(x, np.ndarray):
            steps = getattr(function, "lengths", x.shape[:1] or (1,))
            function.mask = self._mask(x, steps, function.dropout_ratio)
            # Draws of anything else are seen by `has_drawn`.
            begin_stream(self._keys[0], self._position)

    def _mask(self, x: np.ndarray, steps: Sequence[int], ratio: float) -> np.ndarray:
        n_samples = self._edges[-1]
        if len({*steps}) > 1 or steps[0] % n_samples:
            raise NoRowsError(
                f"the microbatches are a group of {n_samples} samples along the first"
                f" axis, but a dropout has an input of the shape {x.shape} in"
                f" {len(steps)} steps of {steps[0]} rows. Give this stage groups of 1"
            )
        # Steps, rows of a step, the axes of a row.
        shape = len(steps), steps[0], *x.shape[1:]
        mask, each = empty_like(x), steps[0] // n_samples
        rows, by_step = x.reshape(shape), mask.reshape(shape)
        for number, key in enumerate(self._keys):
            begin, end = (each * edge for edge in self._edges[number : number + 2])
            self._go_on(number, key)
            by_step[:, begin:end] = drawn_mask(rows[:, begin:end], ratio)
            self._states[number] = np.random.get_state(legacy=False)
        return mask

    def _go_on(self, number: int, key: RandomKey) -> None:
        if self._states[number] is None:
            begin_stream(key, self._position)
        else:
            np.random.set_state(self._states[number])
