"""Several microbatches that pass through a stage as one.

A stage with large weights and few rows takes nearly as long for one microbatch as for
four. A group passes through it once. Messages stay one for each microbatch, so other
stages may have other groups::

    inputs of 4, 5, 6, 7 --> rows joined --> layer A once --> layer B four times --> ...
                                                                            |
    outputs of 4, 5, 6, 7 <--------------------------------- rows taken apart

A layer runs once if that changes nothing. It runs once for each microbatch if it
normalizes over the samples, reports values or changes a persistent value, and if its
outputs would otherwise be others. Dropout gets the mask of each microbatch
(`pipeline.stages.group_masks`); a layer that draws other random numbers runs once for
each. The first group of a stage finds out, by running each layer in both ways. It
compares outputs, not gradients, and for the samples of this group only. The loss runs
once for each microbatch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels.contributions import Rows
from divisible.random_streams import RandomKey, begin_stream, has_drawn
from divisible.running_averages import AveragingFunction
from pipeline.stages.batch_statistics import NORMALIZING, BatchStatistics
from pipeline.stages.group_masks import GroupMasks, NoRowsError
from pipeline.stages.held import Persistents
from pipeline.stages.loss import Loss


class LayerCalls(enum.Enum):
    """How a layer runs for a group."""

    #: Once for each microbatch.
    EACH = "each"
    #: Once for all.
    ONCE = "once"
    #: Once for all, with the dropout masks of each microbatch.
    WITH_MASKS = "with masks"


# Largest difference of outputs, relative to the largest value, by the size of an item.
_ROUNDING = {2: 2e-2, 4: 1e-4, 8: 1e-10}


class Part(NamedTuple):
    """A microbatch with samples in a group.

    Attributes:
        microbatch: Position of the microbatch in the minibatch.
        n_samples: Number of its samples.
        key: The key of its random numbers.
    """

    microbatch: int
    n_samples: int
    key: RandomKey


class Group(int):
    """A group of microbatches; as a number, the position of the first one.

    Graphs and inputs of a group are held under this number.

    Args:
        parts: The microbatches.
        calls (dict): How a layer runs (LayerCalls), by its position and
            ``config.train``, as far as this is known; changed. The groups of a stage
            share it.
        reports: ``reports(values)`` returns the context in which layers report into a
            dictionary.
        statistics (BatchStatistics or None): Collects the statistics of batch
            normalization.

    Attributes:
        parts (sequence of Part): The microbatches.
        numbers (list of int): Their positions in the minibatch.
        n_samples (int): Samples of all microbatches.
        reported (list of dict): The values that layers reported in the last forward, by
            name, for each microbatch.
    """

    parts: Sequence[Part]

    def __new__(
        cls,
        parts: Sequence[Part],
        calls: dict[tuple[int, bool], LayerCalls],
        reports: Callable[[dict], AbstractContextManager],
        statistics: BatchStatistics | None = None,
    ) -> Group:
        """Makes a group under the number of its first microbatch."""
        group = super().__new__(cls, parts[0].microbatch)
        group.parts = parts
        group.numbers = [part.microbatch for part in parts]
        group.n_samples = sum(part.n_samples for part in parts)
        group.reported = [{} for _ in parts]
        group._calls, group._reports, group._statistics = calls, reports, statistics
        return group

    def call(
        self, position: int, layer: Any, run: Callable[..., Any], inputs: tuple
    ) -> Any:
        """Calls a layer: once, or for each microbatch.

        Args:
            position: Position of the layer in the undivided model.
            layer: The layer.
            run: Function that calls the layer.
            inputs: Its inputs for all microbatches.

        Raises:
            TypeError: If an input or output does not have the samples along its first
                axis.
        """
        key = position, chainer.config.train
        calls = self._calls.get(key)
        if calls is None:
            return self._first_call(key, layer, run, inputs)
        if calls is LayerCalls.EACH:
            return self._joined([*self._apart(position, run, inputs)])
        if calls is LayerCalls.ONCE:
            return run(*inputs)
        with self._masks(position):
            y = run(*inputs)
        if has_drawn():
            raise TypeError(
                "this layer draws random numbers outside of F.dropout, but did not in"
                " the first group, so its microbatches cannot run in groups: give this"
                " stage groups of 1"
            )
        return y

    def reports(self) -> list[tuple[int, dict]]:
        """Returns the samples of each microbatch with reports, and what it reported."""
        return [
            (part.n_samples, values)
            for part, values in zip(self.parts, self.reported)
            if values
        ]

    def losses(self, loss: Loss, outputs: Sequence[Any], position: int) -> tuple:
        """Returns the loss of each microbatch.

        Args:
            loss (Loss): The loss.
            outputs: The outputs of the last layer for all microbatches.
            position: The position behind the last layer, for random numbers.
        """
        numbers = iter(self.numbers)

        def run(*mine: Any) -> chainer.Variable:
            return loss(next(numbers), mine)

        return tuple(self._apart(position, run, outputs))

    def split(self, values: Sequence[Any]) -> list[tuple]:
        """Returns the rows of each microbatch in variables or arrays.

        Raises:
            TypeError: If a value does not have the samples along its first axis.
        """
        each = [self._rows_of(value) for value in values]
        return [*zip(*each)] if each else [() for _ in self.parts]

    def _rows_of(self, value: Any) -> Sequence[Any]:
        if isinstance(value, dict):
            rows = [self._rows_of(each) for each in value.values()]
            return [dict(zip(value, mine)) for mine in zip(*rows)]
        shape = getattr(value, "shape", ())
        if not shape or shape[0] % self.n_samples:
            raise self._refusal(value)
        each = shape[0] // self.n_samples
        counts = [part.n_samples for part in self.parts[:-1]]
        cuts = (each * np.cumsum(counts, dtype=int)).tolist()
        if isinstance(value, chainer.Variable):
            return F.split_axis(value, cuts, 0)
        edges = [0, *cuts, shape[0]]
        return [value[a:b] for a, b in zip(edges, edges[1:])]

    def _apart(
        self, position: int, run: Callable[..., Any], inputs: Sequence[Any]
    ) -> Iterator[Any]:
        """Yields the outputs of each microbatch, with its random numbers."""
        statistics = self._statistics
        calls = {} if statistics is None else statistics.calls()
        for number, (part, mine) in enumerate(zip(self.parts, self.split(inputs))):
            # The stream of the first microbatch has begun.
            if number:
                begin_stream(part.key, position)
                if statistics is not None:
                    statistics.begin_part(calls)
            with self._reports(self.reported[number]):
                yield run(*mine)

    def _joined(self, outputs: Sequence[Any]) -> Any:
        """Returns the outputs of all microbatches as one."""
        if not isinstance(outputs[0], tuple):
            return self._all_rows(outputs)
        return tuple(map(self._all_rows, zip(*outputs)))

    def _all_rows(self, values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {
                key: self._all_rows([value[key] for value in values])
                for key in values[0]
            }
        ratios = set()
        for part, value in zip(self.parts, values):
            shape = getattr(value, "shape", ())
            if not shape or shape[0] % part.n_samples:
                raise self._refusal(value)
            ratios.add(shape[0] // part.n_samples)
        if len(ratios) > 1:
            raise self._refusal(values[0])
        check_alike(values)
        if all(isinstance(value, chainer.Variable) for value in values):
            return F.concat(values, 0)
        return Rows().of(values)

    def _masks(self, position: int) -> GroupMasks:
        """Returns the context in which dropouts of a layer have the right masks."""
        keys = [part.key for part in self.parts]
        return GroupMasks(keys, [part.n_samples for part in self.parts], position)

    def _refusal(self, value: Any) -> TypeError:
        """Returns the error for a value that has no rows for each microbatch."""
        shape = getattr(value, "shape", ())
        what = f"the shape {shape}" if shape else f"none: {type(value).__name__}"
        return TypeError(
            f"the microbatches {', '.join(map(str, self.numbers))} are a group of"
            f" {self.n_samples} samples along the first axis, but a value between"
            f" layers has {what}. Give this stage groups of 1"
        )

    def _first_call(
        self,
        key: tuple[int, bool],
        layer: Any,
        run: Callable[..., Any],
        inputs: tuple,
    ) -> Any:
        """Calls a layer for each microbatch, and finds out whether once would do."""
        links = [*layer.links()] if isinstance(layer, chainer.Link) else []
        sizes_come = not all(
            param.is_initialized for link in links for param in link.params()
        )
        before, n_reported = Persistents(links), sum(map(len, self.reported))
        trial, draws, outputs = tuple(map(_copy, inputs)), False, []
        with _Normalizing() as normalizing:
            for y in self._apart(key[0], run, inputs):
                outputs.append(y)
                draws |= has_drawn()
        y = self._joined(outputs)
        if sizes_come or len(self.parts) == 1:
            # The layer has drawn its weights just now, or nothing was joined. A later
            # group finds out.
            return y
        is_alone = normalizing.is_seen or not before.are_there()
        is_alone |= sum(map(len, self.reported)) > n_reported
        if not is_alone:
            is_alone = not self._is_same_at_once(key[0], run, trial, draws, outputs, y)
        if is_alone:
            self._calls[key] = LayerCalls.EACH
        else:
            self._calls[key] = LayerCalls.WITH_MASKS if draws else LayerCalls.ONCE
        return y

    def _is_same_at_once(
        self,
        position: int,
        run: Callable[..., Any],
        inputs: tuple,
        draws: bool,
        outputs: Sequence[Any],
        y: Any,
    ) -> bool:
        """Returns whether one call of a layer computes what it did one by one.

        Args:
            position: Position of the layer in the undivided model.
            run: Function that calls the layer.
            inputs: Its inputs for all microbatches.
            draws: Whether the layer draws random numbers.
            outputs: The outputs of each microbatch.
            y: The outputs of all microbatches, joined.
        """
        first = self.split(inputs)[0]
        with chainer.no_backprop_mode():
            begin_stream(self.parts[0].key, position)
            if not _are_close(run(*map(_copy, first)), outputs[0]):
                raise TypeError(
                    "the outputs of this layer change from call to call, so its"
                    " microbatches cannot run in groups: give this stage groups of 1"
                )
            begin_stream(self.parts[0].key, position)
            try:
                with self._masks(position) if draws else nullcontext():
                    at_once = run(*inputs)
            except NoRowsError:
                return False
        return _are_close(at_once, y) and not (draws and has_drawn())


def check_alike(values: Sequence[Any]) -> None:
    """Refuses values of microbatches that cannot be joined.

    Raises:
        TypeError: If their dtypes or their axes but the first differ.
    """
    kinds = {(value.dtype.name, value.shape[1:]) for value in values}
    if len(kinds) > 1:
        found = " and ".join(f"{name} {shape}" for name, shape in sorted(kinds))
        raise TypeError(
            f"the samples of microbatches in a group are {found}, so they cannot be"
            f" joined: give this stage groups of 1"
        )


class _Normalizing(chainer.FunctionHook):
    """Finds layers that normalize over samples, as batch normalization does.

    Attributes:
        is_seen (bool): Whether such a function was called.
    """

    name = "pipeline.Normalizing"
    only_reads = True
    is_seen = False

    def forward_preprocess(self, function: Any, in_data: tuple) -> None:
        """Is called by every function."""
        if chainer.config.train and isinstance(function, NORMALIZING):
            may_have = not isinstance(function, AveragingFunction)
            self.is_seen |= may_have or function.has_averages()


def _copy(value: Any) -> Any:
    """Returns a value whose array a layer may change in place."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, chainer.Variable):
        return chainer.Variable(value.array.copy(), requires_grad=False)
    return value.copy() if isinstance(value, chainer.get_array_types()) else value


def _are_close(some: Any, others: Any) -> bool:
    """Returns whether the outputs of a layer are equal up to rounding."""
    if isinstance(some, dict):
        some, others = tuple(some.values()), tuple(others.values())
    if isinstance(some, tuple) != isinstance(others, tuple):
        return False
    if isinstance(some, tuple):
        return len(some) == len(others) and all(map(_are_close, some, others))
    a, b = chainer.as_array(some), chainer.as_array(others)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    xp = chainer.backend.get_array_module(a)
    if a.dtype.kind != "f":
        return bool((a == b).all())
    largest = xp.abs(b).max(initial=0)
    close = xp.abs(a - b) <= _ROUNDING[a.dtype.itemsize] * largest
    return bool((close | (a == b) | (xp.isnan(a) & xp.isnan(b))).all())
