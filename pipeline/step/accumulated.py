"""Gradients of the steps before, to which a step adds its own.

A minibatch that is too large for one step is given in parts. As in Chainer, where
``loss.backward()`` without ``cleargrads`` adds to gradients::

    step(x0, t0)                        gradients of part 0
    step(x1, t1, accumulate=True)       of parts 0 and 1
    step(x2, t2, accumulate=True)       of parts 0, 1 and 2
    optimizer.update()

Sums of float16 are rounded once in each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import chainer
import numpy as np


class _WithParams(Protocol):
    """A stage or a link."""

    def params(self) -> Iterable[chainer.Parameter]:
        """Returns parameters, some of them several times."""


class Accumulated:
    """Copies of gradients that a step adds to.

    Args:
        stages: Stages of this rank, the last one with its loss.

    Example:
        >>> import chainer.links as L
        >>> layer = L.Linear(2, 1)
        >>> layer.W.grad = np.ones((1, 2), np.float32)
        >>> before = Accumulated([layer])
        >>> before.add()
        >>> layer.W.grad
        array([[2., 2.]], dtype=float32)
    """

    def __init__(self, stages: Iterable[_WithParams]) -> None:
        # A rank may use a parameter in several stages.
        params = {id(param): param for stage in stages for param in stage.params()}
        self._before: list[tuple[chainer.Parameter, Any]] = []
        for param in params.values():
            if param.grad is not None:
                self._before.append((param, param.grad.copy()))

    def add(self) -> None:
        """Adds the gradients to those that the parameters have now."""
        for param, before in self._before:
            if param.grad is None:
                param.grad = before
            elif param.dtype == np.float16:
                total = before.astype(np.float32) + param.grad
                # An overflow becomes infinity, which loss scaling looks for.
                with np.errstate(over="ignore"):
                    param.grad[...] = total
            else:
                param.grad += before


def begin_accumulating(pipeline: Any) -> Accumulated:
    """Returns the gradients that the next step of a pipeline adds to.

    Args:
        pipeline (Pipeline): The pipeline.

    Raises:
        ValueError: On every rank, if there was no step yet, or a feature of the run
            does not go together with accumulated gradients.
    """
    found = {
        "streamed layers": pipeline.internals.has_streamed_layers,
        "replicas": pipeline.n_replicas > 1,
        "two weight versions": pipeline.schedule.weight_versions > 1,
    }
    for feature, is_there in found.items():
        if is_there:
            raise ValueError(
                f"step(accumulate=True) does not go together with {feature}: give the"
                f" whole minibatch to one step, in more microbatches"
            )
    if pipeline.internals.record is None:
        raise ValueError(
            "step(accumulate=True) adds to the gradients of the step before, and there"
            " is none: call step() without it first"
        )
    # An update that is corrected changes gradients once more.
    pipeline.confirm_update()
    # These stages have the parameters of the loss as well.
    return Accumulated(pipeline.internals.step.stages.values())
