"""Evaluation and prediction over a whole data set, forward only."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, TypeVar

import chainer
from chainer.dataset import convert
from chainer.training.extensions import Evaluator
from chainer.training.extensions.evaluator import _IteratorProgressBar

from chainer_kernels.prepared_weights import scope_for
from data_parallel import ReplicaIterator
from divisible.minibatch import concatenate
from divisible.weighted_means import RunningMeans
from pipeline.pipeline import Pipeline
from pipeline.stages.reports import named
from pipeline.step.results import LateOutputs
from pipeline.step.step_end import StepEnd
from pipeline.training.minibatches import (
    Key,
    Minibatch,
    MinibatchReader,
    iterators_of_rank,
)

T = TypeVar("T")


class PipelineEvaluator(Evaluator):
    """Evaluates a model that is divided over the ranks of a pipeline.

    Use it on every rank in place of :class:`chainer.training.extensions.Evaluator`.
    Only the rank with the first stage reads samples; the iterators of the other ranks
    are not used and may be ``None``. On a grid each replica evaluates its part, if its
    iterator is a :class:`~data_parallel.ReplicaIterator`. The results are means over
    the whole data set, the same floats on every rank.

    Several batches of the iterator, as many as the pipeline has microbatches, form one
    minibatch, which is cut into equal microbatches. So a batch of the iterator has
    about as many samples as a layer gets at a time. The batch size may differ from that
    of training.

    Args:
        iterator (chainer.dataset.Iterator or dict): Iterator over the batches, without
            repetition; read on the first stage's rank only.
        pipeline (Pipeline): Pipeline that computes the losses.
        converter: Function that makes arrays from a list of samples.
        device: Device for the arrays of the converter.
        eval_hook: Called on every rank before each evaluation, with the evaluator.
        mean (str): ``'samples'`` for means over all samples of the data set. With
            ``'batches'`` they are means of the batches' means, as from Chainer's own
            evaluator: each sample of a smaller last batch counts more.
        at_once (int or None): Number of the iterator's batches in a minibatch. ``None``
            for the number of microbatches, or for 1 if a layer carries a state
            (:func:`divisible.carry_state`). An evaluation begins without a state. Give
            1 if samples of two batches do not fit into one array, as in buckets of
            equal lengths.
        label_key (int, str or tuple): Key of the target among the converter's arrays,
            or several; see :class:`~pipeline.PipelineUpdater`.
        progress_bar (bool): Whether the rank of the first stage shows a progress bar.

    Raises:
        ValueError: If ``mean`` is neither of the two, ``at_once`` is not positive, or
            the iterator repeats its data set.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
        >>> samples = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(10)]
        >>> iterator = chainer.iterators.SerialIterator(
        ...     samples, 4, repeat=False, shuffle=False)
        >>> sorted(PipelineEvaluator(iterator, pipe)())
        ['main/accuracy', 'main/loss']
    """

    #: Whether all ranks must call it at the same minibatch, whatever its trigger.
    is_collective = True

    def __init__(
        self,
        iterator: Any,
        pipeline: Pipeline,
        *,
        converter: Callable = convert.concat_examples,
        device: Any = None,
        eval_hook: Callable | None = None,
        mean: str = "samples",
        at_once: int | None = None,
        label_key: Key | Sequence[Key] = -1,
        progress_bar: bool = False,
    ) -> None:
        if mean not in ("samples", "batches"):
            raise ValueError(f"mean must be 'samples' or 'batches', not {mean!r}")
        iterators = iterators_of_rank(iterator, pipeline)
        _check_has_end(iterators["main"], "evaluate")
        super().__init__(
            iterators,
            {"main": next(iter(pipeline.stages.values()))},
            converter,
            device,
            eval_hook,
            progress_bar=progress_bar and pipeline.is_first and _is_replica_0(pipeline),
        )
        self.pipeline = pipeline
        self._mean = mean
        # A batch has a mean of its own only in a minibatch of its own.
        self._at_once = 1 if mean == "batches" else _at_once(at_once, pipeline)
        self._reader = MinibatchReader(
            pipeline, converter, self.device, label_key, "evaluate"
        )

    def evaluate(self) -> dict[str, float]:
        """Evaluates the whole data set.

        All ranks must call it.

        Returns:
            dict: The means by name, such as ``'validation/main/loss'``; the same floats
                on every rank.
        """
        if self.eval_hook:
            # The hook may read or change parameters.
            self.pipeline.confirm_update()
            self.eval_hook(self)
        self.pipeline.internals.step.reset_states(of_training=False)
        iterator = self._iterators["main"]
        of_batches = self._mean == "batches"
        means, last = RunningMeans(), {}
        bar = _IteratorProgressBar(iterator=iterator) if self._progress_bar else None
        with _unchanged(self.pipeline):
            for reported, end, n_samples in _behind(self._ends(iterator)):
                result = {**reported, **end.means()}
                counted = {} if of_batches else end.n_counted
                rest = 1 if of_batches else sum(n_samples)
                for name, value in result.items():
                    means.add(name, value, counted.get(name, rest))
                last.update(result)
                if bar:
                    bar.update()
        if bar:
            bar.close()
        # Only the last stage's rank knows how many targets count.
        result = self.pipeline.internals.ranks.share(means.result(of_nothing=last))
        prefix = f"{self.name}/" if self.name else ""
        return {prefix + name: mean for name, mean in named(result).items()}

    def _ends(self, iterator: Any) -> Iterator[tuple[dict, StepEnd, Sequence[int]]]:
        """Yields the values and end of each minibatch, and its samples by replica."""
        internals, goes_on = self.pipeline.internals, False
        for minibatch in _sweep(self._reader, iterator, self._at_once):
            found = internals.evaluate_late(minibatch.x, minibatch.t, goes_on)
            yield (*found, internals.ranks.calls.agreed.n_samples)
            goes_on = True


def predict(
    pipeline: Pipeline,
    iterator: Any,
    *,
    converter: Callable = convert.concat_examples,
    device: Any = None,
    label_key: Key | Sequence[Key] | None = None,
    at_once: int | None = None,
    axis: int | Sequence[int] = 0,
) -> Any:
    """Returns the model's outputs for a whole data set.

    All ranks must call it. As in :class:`PipelineEvaluator`, only the rank of the first
    stage reads samples, and several batches form one minibatch. A rank begins the next
    minibatch while later ranks are still in this one.

    Args:
        pipeline (Pipeline): Pipeline of the model.
        iterator (chainer.dataset.Iterator): Iterator over the batches, without
            repetition or shuffling; read on the first stage's rank only.
        converter: Function that makes arrays from a list of samples.
        device: Device for the arrays of the converter.
        label_key (int, str, tuple or None): Key of the targets among the converter's
            arrays, which are left out here; ``None`` if all arrays are inputs.
        at_once (int or None): Number of the iterator's batches in a minibatch; see
            :class:`PipelineEvaluator`.
        axis (int or tuple of ints): Axis of the samples in the outputs, for all outputs
            or for each; the same on every rank.

    Returns:
        array or tuple of arrays: Outputs of the last layer, on every rank.

    Raises:
        ValueError: If there are no samples, if the iterator repeats them, or if the
            outputs do not have them along ``axis``.
        TypeError: If ``iterator`` is a :class:`~data_parallel.ReplicaIterator`.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
        >>> iterator = chainer.iterators.SerialIterator(
        ...     np.ones((10, 4), np.float32), 4, repeat=False, shuffle=False)
        >>> predict(pipe, iterator).shape
        (10, 3)
    """
    reader = MinibatchReader(pipeline, converter, device, label_key, "predict")
    # Outputs of a part are not those of the data set.
    iterator = iterators_of_rank(iterator, pipeline, is_shared=False)["main"]
    if isinstance(iterator, ReplicaIterator):
        raise TypeError(
            "a ReplicaIterator has one replica's samples, and outputs of a part are not"
            " those of the data set: give the iterator itself on every replica"
        )
    _check_has_end(iterator, "predict from")
    pipeline.internals.step.reset_states(of_training=False)
    sizes: list[int] = []
    outputs: list[tuple] = []
    errors: list[Exception] = []

    def begun() -> Iterator[LateOutputs]:
        for minibatch in _sweep(reader, iterator, _at_once(at_once, pipeline)):
            for x, n in _unequal_parts(minibatch, sizes, pipeline):
                if errors:
                    return
                sizes.append(n)
                yield pipeline.internals.predict_late(x, axis)

    with _unchanged(pipeline):
        for late in _behind(begun()):
            try:
                outputs.append(late.read())
            except (TypeError, ValueError) as error:
                # All ranks raise it, and read what they have begun before.
                errors.append(error)
    if errors:
        raise errors[0]
    if not outputs:
        raise ValueError(
            "the data set has no samples to predict for: give at least one sample"
        )
    with chainer.using_device(chainer.backend.get_device_from_array(*outputs[0])):
        columns = concatenate(outputs, sizes, axis)
    return columns[0] if len(columns) == 1 else columns


def _unchanged(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Returns the scope of a data set, where each minibatch would have one itself."""
    if pipeline.schedule.n_microbatches == 1:
        return nullcontext()
    stages = pipeline.stages.values()
    return scope_for(param for stage in stages for param in stage.params())()


def _check_has_end(iterator: Any, what: str) -> None:
    """Refuses an iterator without an end."""
    # Chainer's iterators have the attribute with or without an underscore.
    if getattr(iterator, "repeat", getattr(iterator, "_repeat", False)):
        raise ValueError(
            f"the {type(iterator).__name__} to {what} repeats its data set, and so has"
            f" no end: make it with repeat=False"
        )


def _unequal_parts(
    minibatch: Minibatch, sizes: Sequence[int], pipeline: Pipeline
) -> Iterator[tuple[Any, int]]:
    """Yields a minibatch's inputs, of the second minibatch perhaps in unequal parts.

    If all minibatches had equally many samples, the outputs would not reveal whether
    samples lie along the axis. So one minibatch is cut unequally, but only if the
    pipeline does not cut it further. It stays whole if a layer carries a state, because
    the second part would go on from the state of other samples.
    """
    x, n = minibatch.x, minibatch.n_samples
    is_uncut = n == 2 or pipeline.schedule.n_microbatches == 1
    is_uncut = is_uncut and not _carried_states(pipeline)
    if list(sizes) == [n] and is_uncut and n > 1:
        for part in (slice(n - 1), slice(n - 1, n)):
            yield x and tuple(array[part] for array in x), len(range(n)[part])
    else:
        yield x, n


def _is_replica_0(pipeline: Pipeline) -> bool:
    return pipeline.replica == 0


def _carried_states(pipeline: Pipeline) -> tuple[str, ...]:
    return next(iter(pipeline.stages.values())).carried_states


def _at_once(chosen: int | None, pipeline: Pipeline) -> int:
    carried = _carried_states(pipeline)
    if carried and chosen not in (None, 1):
        raise ValueError(
            f"at_once is {chosen}, but {carried[0]} carries a state from one of the"
            f" iterator's batches to the next, so only one goes at once"
        )
    if carried:
        return 1
    if chosen is None:
        return pipeline.schedule.n_microbatches
    if chosen < 1:
        raise ValueError(f"at_once must be positive, not {chosen}")
    return chosen


def _behind(begun: Iterator[T]) -> Iterator[T]:
    """Yields each minibatch when the next one has begun, so that ranks do not wait.

    A rank begins a minibatch when all have begun the one before, so two of them are in
    the pipeline at most.
    """
    before = [*itertools.islice(begun, 1)]
    for one in begun:
        yield before.pop()
        before.append(one)
    yield from before


def _sweep(reader: MinibatchReader, iterator: Any, at_once: int) -> Iterator[Minibatch]:
    """Yields all minibatches of an iterator, from its beginning."""
    if reader.reads:
        if hasattr(iterator, "reset"):
            iterator.reset()
        else:
            # Chainer copies an iterator that has no reset().
            iterator = copy.copy(iterator)
    while True:
        try:
            minibatch = reader.next(iterator, at_once)
        except StopIteration:
            return
        yield minibatch
