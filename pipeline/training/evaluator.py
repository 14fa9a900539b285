"""Evaluation and prediction over a whole data set, forward only."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import chainer
from chainer.dataset import convert
from chainer.training.extensions import Evaluator
from chainer.training.extensions.evaluator import _IteratorProgressBar

from chainer_kernels.prepared_weights import unchanged_weights
from data_parallel import ReplicaIterator
from divisible.minibatch import concatenate
from divisible.weighted_means import RunningMeans
from pipeline.pipeline import Pipeline
from pipeline.stages.reports import named
from pipeline.training.minibatches import (
    Key,
    Minibatch,
    MinibatchReader,
    iterators_of_rank,
)


class PipelineEvaluator(Evaluator):
    """Evaluates a model that is divided over the ranks of a pipeline.

    It stands where :class:`chainer.training.extensions.Evaluator` stood, on every rank.
    Samples come from the iterator of the rank with the first stage; those of the other
    ranks are not used, and may be ``None``. On a grid each replica evaluates its part,
    if its iterator is a :class:`~data_parallel.ReplicaIterator`. The results are the
    same floats on every rank, means over the whole data set.

    As many of the iterator's batches as the pipeline has microbatches are converted
    together, cut anew into equal microbatches, and on their way through the stages at
    once; so the iterator's batch size is about what a layer sees at a time, and may
    differ from that of training.

    Args:
        iterator (chainer.dataset.Iterator or dict): The batches, without repetition.
            Read on the first stage's rank, ignored elsewhere.
        pipeline (Pipeline): What computes the losses.
        converter: Makes arrays from a list of samples.
        device: Where the converter is to put the arrays.
        eval_hook: Called on every rank before each evaluation, with the evaluator.
        mean (str): ``'samples'`` for the means over all samples of the data set, or
            ``'batches'`` for what Chainer's own evaluator gives: the means of the
            batches' means, in which each sample of a smaller last batch counts more.
        at_once (int or None): How many of the iterator's batches to take together;
            by default as many as there are microbatches, or one if a layer carries a
            state (:func:`divisible.carry_state`), which begins anew here. Give 1 if
            samples of two batches do not fit into one array, as in buckets of equal
            lengths.
        label_key (int, str or tuple): As for :class:`~pipeline.PipelineUpdater`.
        progress_bar (bool): Whether the rank of the first stage shows how far it is.

    Raises:
        ValueError: If ``mean`` is neither of the two, ``at_once`` not positive, or the
            iterator repeats its data set.

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

    #: To be called on all ranks at the same minibatch, whatever its trigger.
    is_collective = True

    def __init__(
        self,
        iterator: Any,
        pipeline: Pipeline,
        converter: Callable = convert.concat_examples,
        device: Any = None,
        eval_hook: Callable | None = None,
        *,
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
        # In one minibatch with others a batch would have no mean of its own.
        self._at_once = 1 if mean == "batches" else _at_once(at_once, pipeline)
        self._reader = MinibatchReader(
            pipeline, converter, self.device, label_key, "evaluate"
        )

    def evaluate(self) -> dict[str, float]:
        """Evaluates the whole data set.

        To be called on every rank.

        Returns:
            dict: The means by name, such as ``'validation/main/loss'``: floats, equal
            on every rank.
        """
        if self.eval_hook:
            self.eval_hook(self)
        self.pipeline.body.reset_states(of_training=False)
        iterator = self._iterators["main"]
        of_batches = self._mean == "batches"
        means, last = RunningMeans(), {}
        bar = _IteratorProgressBar(iterator=iterator) if self._progress_bar else None
        with _unchanged(self.pipeline):
            for minibatch in _sweep(self._reader, iterator, self._at_once):
                result = self.pipeline.evaluate(minibatch.x, minibatch.t)
                counted = {} if of_batches else self.pipeline.n_counted
                n_samples = self.pipeline.ranks.calls.agreed.n_samples
                rest = 1 if of_batches else sum(n_samples)
                for name, value in result.items():
                    means.add(name, value, counted.get(name, rest))
                last.update(result)
                if bar:
                    bar.update()
        if bar:
            bar.close()
        # Only the last stage knows how many of the targets count.
        result = self.pipeline.ranks.share(means.result(of_nothing=last))
        prefix = f"{self.name}/" if self.name else ""
        return {prefix + name: mean for name, mean in named(result).items()}


def predict(
    pipeline: Pipeline,
    iterator: Any,
    converter: Callable = convert.concat_examples,
    device: Any = None,
    label_key: Key | Sequence[Key] | None = None,
    at_once: int | None = None,
    axis: int | Sequence[int] = 0,
) -> Any:
    """Returns the model's outputs for a whole data set.

    To be called on every rank. As in :class:`PipelineEvaluator`, only the rank of the
    first stage reads the samples, and several batches are on their way at once.

    Args:
        pipeline (Pipeline): Of the model.
        iterator (chainer.dataset.Iterator): The batches, without repetition or
            shuffling. Read on the first stage's rank, ignored elsewhere.
        converter: Makes arrays from a list of samples.
        device: Where the converter is to put the arrays.
        label_key (int, str, tuple or None): Which of the converter's arrays are targets
            and not wanted here; ``None`` if all are inputs.
        at_once (int or None): As for :class:`PipelineEvaluator`.
        axis (int or tuple of ints): Along which axis the outputs have the samples; one
            for all outputs, or one for each. The same on every rank.

    Returns:
        array or tuple of arrays: What the last layer returns, on every rank.

    Raises:
        ValueError: If there are no samples, or the iterator repeats them, or outputs
            do not have them along that axis.
        TypeError: If it is a :class:`~data_parallel.ReplicaIterator`.

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
    pipeline.body.reset_states(of_training=False)
    outputs, sizes = [], []
    with _unchanged(pipeline):
        for minibatch in _sweep(reader, iterator, _at_once(at_once, pipeline)):
            for x, n in _unequal_parts(minibatch, sizes, pipeline):
                output = pipeline.predict(x, axis)
                outputs.append(output if isinstance(output, tuple) else (output,))
                sizes.append(n)
    if not outputs:
        raise ValueError("there are no samples to predict anything for")
    with chainer.using_device(chainer.backend.get_device_from_array(*outputs[0])):
        columns = concatenate(outputs, sizes, axis)
    return columns[0] if len(columns) == 1 else columns


def _unchanged(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Returns the scope of a data set, where each minibatch would have one itself."""
    is_cut = pipeline.schedule.n_microbatches > 1
    return unchanged_weights() if is_cut else nullcontext()


def _check_has_end(iterator: Any, what: str) -> None:
    """Refuses an iterator that begins again for ever."""
    # Chainer's have it with or without an underscore.
    if getattr(iterator, "repeat", getattr(iterator, "_repeat", False)):
        raise ValueError(
            f"the {type(iterator).__name__} to {what} repeats its data set, and so has"
            f" no end: make it with repeat=False"
        )


def _unequal_parts(
    minibatch: Minibatch, sizes: Sequence[int], pipeline: Pipeline
) -> Iterator[tuple[Any, int]]:
    """Yields the inputs of a minibatch; of the second one perhaps in unequal parts.

    By the lengths of outputs one sees whether the samples are along an axis, if not all
    parts of the data set have equally many. In a pipeline they have, if it cuts a
    minibatch into one. Where a layer carries a state, a part would go on from that of
    other samples, so none is made.
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
    return pipeline.ranks.replica == 0


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


def _sweep(reader: MinibatchReader, iterator: Any, at_once: int) -> Iterator[Minibatch]:
    """Yields all minibatches of an iterator, from its beginning."""
    if reader.reads:
        if hasattr(iterator, "reset"):
            iterator.reset()
        else:
            # What Chainer does with an iterator from before there was a reset.
            iterator = copy.copy(iterator)
    while True:
        try:
            minibatch = reader.next(iterator, at_once)
        except StopIteration:
            return
        yield minibatch
