"""Weight gradients of several microbatches, computed together.

The graphs of microbatches look alike. The functions that were left out of their
backwards (I) are paired by position. Each pair's products become one, whose rows are
those of all microbatches::

    microbatch 0    Linear 3      Linear 2      Linear 1
    microbatch 1    Linear 3      Linear 2      Linear 1
                    one product   one product   one product

Where graphs differ, microbatches are computed one after the other. So are functions
that form the gradient of a weight as an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer

from chainer_kernels.contributions import Contribution, Rows
from divisible.backward.graph_functions import parameter_of
from divisible.backward.graph_walk import GraphWalk
from divisible.backward.weight_gradients import WeightGradients

Array = Any


def run_weights_together(
    walks: Sequence[GraphWalk], weight_gradients: WeightGradients
) -> None:
    """Computes the weight gradients that several backwards left out.

    Args:
        walks: The backwards of some microbatches, in the order of the microbatches.
        weight_gradients (WeightGradients): The object to which all of them add.

    Raises:
        Exception: An error of a function, with its layer's ``layer_position``.
    """
    completion = weight_gradients.completion
    if completion is not None:
        # A gradient is complete when all microbatches have added to it.
        for walk in walks:
            completion.expect(walk.expected_parameters())
    steps = [_steps(walk) for walk in walks]
    if any(each != steps[0] for each in steps):
        for walk in walks:
            while walk.deferred:
                walk.run_next_weights()
            walk.run_between_weights()
        return
    together = _Together(weight_gradients)
    for walk in walks:
        walk.add_to(together)
    for step in steps[0]:
        with together.added_up(step.layer_position):
            for walk in walks:
                walk.run_next_weights()
    for walk in walks:
        with together.added_up(None):
            walk.run_between_weights()


class _WeightStep(NamedTuple):
    """A function that a backward left out; equal ones can be computed together.

    Attributes:
        kind: The type of the function.
        parameters: Identities of the parameters whose gradients it computes.
        targets: The positions of its inputs whose gradients it computes.
        layer_position: Position of its layer in the undivided model.
    """

    kind: type
    parameters: tuple[int, ...]
    targets: tuple[int, ...]
    layer_position: int | None


def _steps(walk: GraphWalk) -> list[_WeightStep]:
    """Returns descriptions of the functions that a backward left out, in order."""
    return [
        _WeightStep(
            type(function),
            tuple([id(parameter_of(function.inputs[i])) for i in weights]),
            weights,
            getattr(function, "layer_position", None),
        )
        for function, weights, _ in walk.deferred
    ]


class _Together:
    """Takes the contributions of one function of several microbatches.

    It stands for :class:`.WeightGradients` while their functions run.

    Args:
        weight_gradients (WeightGradients): The object to which to add.

    Attributes:
        completion: ``None``, because no gradient is complete before all contributions
            have been added up.
    """

    completion = None

    def __init__(self, weight_gradients: WeightGradients) -> None:
        self._weight_gradients = weight_gradients
        # Keys are identities, because variables do not hash.
        self._parameters: dict[int, chainer.Parameter] = {}
        # For each parameter what waits, and how many arrays have been added already.
        self._waiting: dict[int, list[Contribution]] = {}
        self._n_added: dict[int, int] = {}

    def add(self, parameter: chainer.Parameter, array: Array) -> None:
        """Adds an array at once, since it is there and takes memory."""
        self._weight_gradients.add(parameter, array)
        key = id(parameter)
        self._parameters[key] = parameter
        self._n_added[key] = self._n_added.get(key, 0) + 1

    def accumulate(
        self, parameter: chainer.Parameter, contribution: Contribution
    ) -> None:
        """Keeps a contribution until those of all microbatches are there."""
        self._parameters[id(parameter)] = parameter
        self._waiting.setdefault(id(parameter), []).append(contribution)

    @contextmanager
    def added_up(self, layer_position: int | None) -> Iterator[None]:
        """Adds up, at the end, what one function contributes in all microbatches.

        Args:
            layer_position: Position of the function's layer, for errors.
        """
        yield
        rows = Rows()
        try:
            for key, shares in self._waiting.items():
                parameter = self._parameters[key]
                first, *others = shares
                join = getattr(first, "joined", None)
                joined = join(others, rows) if others and join is not None else None
                if joined is not None:
                    self._complete(parameter, len(others))
                    shares = [joined]
                for share in shares:
                    self._weight_gradients.accumulate(parameter, share)
                    self._complete(parameter, 1)
            for key, n in self._n_added.items():
                self._complete(self._parameters[key], n)
        except Exception as error:
            error.layer_position = layer_position
            raise
        finally:
            self._waiting.clear()
            self._n_added.clear()

    def _complete(self, parameter: chainer.Parameter, n_parts: int) -> None:
        """Records parts that have been added, or are part of the one that comes next.

        The last part of a group is recorded when all of them have been added.
        """
        completion = self._weight_gradients.completion
        if completion is not None:
            for _ in range(n_parts):
                completion.add(parameter)
