"""Minibatches from one iterator, for the ranks that use them.

Only the rank of the first stage reads the data set, with its iterator and its
converter. It keeps the inputs, sends the targets unchanged to the rank of the last
stage, and sends the iterator's progress to all ranks::

    rank of        the first stage       a stage between    the last stage
                   iterator, converter
    inputs         used here
    targets        ---------------------------------------> used here
    epoch, end     --------------------> known              known

So a minibatch's inputs and targets belong together, also if the iterator or the
converter draws random numbers: for the order, a crop of both image and label, or a
mixture of samples. No other rank needs the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Callable, NamedTuple, Union

import chainer
import numpy as np
from chainer.dataset import convert

from data_parallel import ReplicaIterator
from divisible.communication.errors import DisagreementError
from divisible.communication.signatures import check_plain
from divisible.number_lists import as_list
from pipeline.pipeline import Pipeline

Key = Union[int, str]
PURPOSES = ("train", "evaluate", "predict")


class Minibatch(NamedTuple):
    """One minibatch on this rank.

    Attributes:
        x: Inputs, on the first stage's rank.
        t: Targets, on the last stage's rank.
        n_samples (int): Number of samples, on every rank.
    """

    x: Any
    t: Any
    n_samples: int


class _Progress(NamedTuple):
    """Progress of an iterator, as numbers, with the names of `RemoteIterator`.

    A ``previous_epoch_detail`` that an iterator does not have is -1.
    """

    epoch: float
    is_new_epoch: float
    epoch_detail: float
    previous_epoch_detail: float

    @classmethod
    def of(cls, iterator: Any) -> _Progress:
        """Returns the progress of an iterator."""
        if _is_empty(iterator):
            return cls(0, False, 0, -1)
        # Chainer requires only the first two attributes.
        previous = getattr(iterator, "previous_epoch_detail", None)
        return cls(
            iterator.epoch,
            iterator.is_new_epoch,
            getattr(iterator, "epoch_detail", iterator.epoch),
            -1 if previous is None else previous,
        )

    def move(self, iterator: RemoteIterator) -> None:
        """Sets the progress of an iterator."""
        previous = self.previous_epoch_detail
        iterator.epoch = int(self.epoch)
        iterator.is_new_epoch = bool(self.is_new_epoch)
        iterator.epoch_detail = self.epoch_detail
        iterator.previous_epoch_detail = None if previous < 0 else previous


class _Told(NamedTuple):
    """Description of a minibatch that the first stage's rank sends to the others.

    Attributes:
        purpose: Position of its purpose in `PURPOSES`.
        n_samples: Number of samples in the minibatch.
        n_batches: Number of the iterator's batches in the minibatch.
        progress: Progress of the iterator after the minibatch.
    """

    purpose: int
    n_samples: int
    n_batches: int
    progress: _Progress


class RemoteIterator(chainer.dataset.Iterator):
    """Progress of the iterator on the first stage's rank, without samples.

    It takes the place of the iterator on the other ranks.

    Attributes:
        epoch (int): Number of completed sweeps over the data set.
        is_new_epoch (bool): Whether the last minibatch completed a sweep.
        epoch_detail (float): Number of sweeps, with the fraction of the present one.
        previous_epoch_detail (float or None): ``epoch_detail`` before the last
            minibatch.
    """

    epoch: int = 0
    is_new_epoch: bool = False
    epoch_detail: float = 0.0
    previous_epoch_detail: float | None = None

    def __next__(self) -> list:
        raise TypeError(
            "this rank has no samples: the iterator is on the rank of the first stage"
        )

    next = __next__


def iterators_of_rank(
    iterator: Any, pipeline: Pipeline, is_shared: bool = True
) -> dict[str, Any]:
    """Returns the iterators of this rank, by name.

    Args:
        iterator: An iterator, or several by name, one of which is ``'main'``.
        pipeline (Pipeline): The pipeline. Its first stage's rank uses the iterator;
            other ranks get a `RemoteIterator` in its place.
        is_shared: Whether replicas that the pipeline has made share its minibatches.
            Each of them then reads its part.

    Raises:
        TypeError: If the first stage's rank has no iterator, or replicas share one that
            does not read by position.
    """
    iterators = dict(iterator) if isinstance(iterator, Mapping) else {"main": iterator}
    if not pipeline.is_first:
        iterators["main"] = RemoteIterator()
    elif not isinstance(iterators.get("main"), chainer.dataset.Iterator):
        # The value is often the data set itself, whose text is as long as all samples.
        given = iterators.get("main")
        raise TypeError(
            f"rank {pipeline.rank} has the first stage and reads the data: it"
            f" needs an iterator, such as chainer.iterators.SerialIterator(dataset,"
            f" batch_size), not {'None' if given is None else type(given).__name__}"
        )
    for each in iterators.values():
        _give_own_generator(each)
    main = iterators["main"]
    shares = is_shared and pipeline.shares_minibatches and pipeline.is_first
    if shares and not isinstance(main, ReplicaIterator):
        timeout = pipeline.internals.ranks.timeout
        iterators["main"] = ReplicaIterator(main, pipeline.grid, timeout=timeout)
    return iterators


def _give_own_generator(iterator: Any) -> None:
    """Gives an iterator that draws its order in a thread a generator of its own.

    A pipeline exchanges the state of the global generator while its layers run, and the
    thread would draw in between. The order is the same as without a pipeline.
    """
    sampler = getattr(iterator, "order_sampler", None)
    shared = np.random.random.__self__
    in_thread = isinstance(iterator, chainer.iterators.MultiprocessIterator)
    if in_thread and getattr(sampler, "_random", None) is shared:
        sampler._random = np.random.RandomState()
        sampler._random.set_state(shared.get_state())


class MinibatchReader:
    """Reads minibatches, and sends their parts to the ranks that use them.

    All ranks must make one, and call its methods together.

    Args:
        pipeline (Pipeline): Pipeline whose ranks use the minibatches.
        converter: Function that makes arrays from a list of samples; see
            :class:`chainer.training.updaters.StandardUpdater`.
        device: Device for the arrays of the converter; ``None`` to leave them.
        label_key (int, str or tuple): Key of the target among the converter's arrays,
            or several; the others are the inputs, in their order. ``None`` if all
            arrays are inputs, for predictions or for a loss without targets.
        purpose (str): Purpose of the minibatches, one of `PURPOSES`.

    Raises:
        ValueError: If there is no target, but ``lossfun`` or ``accfun`` needs one.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        converter: Callable,
        device: Any = None,
        label_key: Key | Sequence[Key] | None = -1,
        purpose: str = "train",
    ) -> None:
        self._ranks = pipeline.internals.ranks
        self.reads = pipeline.is_first
        self._uses_targets = pipeline.is_last
        self._converter = converter
        self._device = None if device is None else chainer.get_device(device)
        self._label_keys = () if label_key is None else tuple(as_list(label_key))
        needs_targets = purpose != "predict" and pipeline.internals.loss.needs_targets
        if not self._label_keys and needs_targets:
            raise ValueError(
                f"label_key is {label_key} on rank {pipeline.rank}: to {purpose}, it"
                f" must name a target, for lossfun or accfun takes more than outputs"
            )
        self._purpose = PURPOSES.index(purpose)
        is_elsewhere = self._ranks.first != self._ranks.last
        self._sends_targets = (
            purpose != "predict" and is_elsewhere and bool(self._label_keys)
        )

    def next(self, iterator: Any, n_batches: int = 1) -> Minibatch:
        """Returns the next minibatch.

        Args:
            iterator (chainer.dataset.Iterator): Iterator to read from, on the first
                stage's rank; `RemoteIterator` whose progress to set, on the others.
            n_batches (int): Number of the iterator's batches to join. The last
                minibatch may have fewer.

        Raises:
            StopIteration: On every rank, at the end of the iterator.
            DisagreementError: If other ranks want a minibatch for another purpose.
        """
        batches = list(islice(_batches(iterator), n_batches)) if self.reads else []
        told = self._tell(iterator, batches, "a minibatch")
        if told.purpose != self._purpose:
            raise DisagreementError(
                f"rank {self._ranks.first} wants a minibatch to"
                f" {PURPOSES[told.purpose]}, rank {self._ranks.rank} one to"
                f" {PURPOSES[self._purpose]}: all ranks must make the same calls, with"
                f" the same triggers"
            )
        if not self.reads:
            told.progress.move(iterator)
        if told.n_batches == 0:
            raise StopIteration
        if told.n_samples == 0 and self._ranks.n_replicas > 1:
            # Other replicas have the samples of this minibatch.
            return Minibatch((), (), 0)
        x, t = self._read(batches) if self.reads else (None, None)
        if self._sends_targets:
            if self.reads:
                host = chainer.get_device("@numpy")
                for array in t:
                    check_plain(array, "a target is")
                self._ranks.send_targets([host.send(array) for array in t])
            elif self._uses_targets:
                t = self._ranks.receive_targets()
        return Minibatch(x, t if self._label_keys else None, told.n_samples)

    def synchronize(self, iterator: Any) -> None:
        """Sends the iterator's progress to all ranks."""
        told = self._tell(iterator, [], "how far the iterator is")
        if not self.reads:
            told.progress.move(iterator)

    def _tell(self, iterator: Any, batches: Sequence[list], about: str) -> _Told:
        """Returns the first stage's description of a minibatch, on all ranks."""
        counts = self._purpose, sum(map(len, batches)), len(batches)
        told = np.array([*counts, *_Progress.of(iterator)], dtype=float)
        self._ranks.tell(told, about)
        counts, progress = told[:3].astype(int).tolist(), told[3:].tolist()
        return _Told(*counts, _Progress(*progress))

    def _read(self, batches: Sequence[list]) -> tuple[tuple, tuple]:
        samples = [sample for batch in batches for sample in batch]
        arrays = convert._call_converter(self._converter, samples, self._device)
        if not isinstance(arrays, (tuple, list, Mapping)):
            arrays = (arrays,)
        keys = list(arrays) if isinstance(arrays, Mapping) else list(range(len(arrays)))
        try:
            chosen = [keys[k] if isinstance(k, int) else k for k in self._label_keys]
            targets = tuple(arrays[key] for key in chosen)
        except (IndexError, KeyError, TypeError):
            raise ValueError(
                f"the converter gave {len(keys)} arrays, {keys}: label_key"
                f" {self._label_keys} names none of them"
            ) from None
        inputs = tuple(arrays[key] for key in keys if key not in chosen)
        if not inputs:
            raise ValueError(
                f"the converter gave {len(keys)} arrays, and all of them are targets:"
                f" samples must be tuples of inputs and target, or label_key None"
            )
        return inputs, targets


def _is_empty(iterator: Any) -> bool:
    """Returns whether a data set is empty; Chainer's iterators divide by its length."""
    dataset = getattr(iterator, "dataset", None)
    return hasattr(dataset, "__len__") and len(dataset) == 0


def _batches(iterator: Any):
    while not _is_empty(iterator):
        try:
            yield iterator.next()
        except StopIteration:
            return
