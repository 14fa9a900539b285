"""The pipeline as a training script sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from divisible import Divisible
from pipeline import schedules
from pipeline.communicator import (
    DisagreementError,
    abort_on_error,
    all_gather,
    as_mpi,
    broadcast,
    broadcast_object,
    clock_offsets,
    duplicate,
)
from pipeline.runner import Runner
from pipeline.schedule import Schedule
from pipeline.stage import Loss, Stage
from pipeline.timeline import Timeline
from pipeline.transport import Tensor, Transport


class Pipeline:
    """Trains a model whose stages lie on the ranks of a communicator.

    Every rank makes a pipeline of its own stage and calls the same methods. A
    minibatch is cut into microbatches, as equal as they come, which pass through the
    stages in the order of a schedule. The loss and the gradients are those of the
    undivided model on the undivided minibatch, if ``lossfun`` is a mean over the
    samples. Layers that look at a whole batch see a microbatch: batch normalization
    normalizes over it, and moves its running averages once for each.

    On one rank this is serial training.

    Args:
        stage (Divisible or list of Divisible): This rank's part of the model; several
            parts for a schedule with several stages on a rank.
        comm: A ChainerMN communicator or an mpi4py one. The ranks' stages must
            follow each other and make up the whole model.
        n_microbatches (int): Number of microbatches to cut a minibatch into. A
            minibatch with fewer samples is cut into single samples.
        schedule (str or Schedule): With one stage on each rank ``'gpipe'``, ``'1f1b'``
            or ``'zb_h1'``; with several ``'interleaved'`` or ``'looped_bfs'``; with
            two, placed in the shape of a V, ``'zb_v'``. See
            :mod:`pipeline.schedules`.
        lossfun: ``lossfun(*outputs, *targets)``, a mean over the samples; used on
            the last stage.
        accfun: The same for the accuracy; ``None`` for none.
        transport (str): ``'mpi'``, or ``'chainermn'`` for the blocking sends and
            receives of ChainerMN, the reference to measure against.
        wire_dtype: A narrower dtype, such as ``numpy.float16``, in which to send
            floating-point arrays between the stages; only with ``'mpi'``.
        timeout (float): Seconds to wait for another rank before giving up.

    Attributes:
        schedule (Schedule): What :meth:`step` runs.

    Raises:
        DisagreementError: On every rank, if the ranks' stages do not make up one
            model, or their arguments differ.
        ValueError: If an argument is out of range.
        TypeError: If an argument is of the wrong type.

    .. admonition:: Example

        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible, Plan
        >>> model = Divisible(L.Linear(4, 8), L.Linear(8, 3))
        >>> comm = MPI.COMM_SELF
        >>> stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
        >>> optimizer = chainer.optimizers.SGD(0.1).setup(stage)
        >>> pipe = Pipeline(stage, comm, n_microbatches=2)
        >>> x, t = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
        >>> first = pipe.step(x, t)['loss']
        >>> optimizer.update()
        >>> pipe.evaluate(x, t)['loss'] < first
        True

    See section 3 of Takizawa et al. (2022); :func:`~pipeline.send_data` and the
    others are its own means.

    """

    def __init__(
        self,
        stage: Divisible | Sequence[Divisible],
        comm: Any,
        n_microbatches: int | None = None,
        schedule: str | Schedule = "1f1b",
        lossfun: Callable = F.softmax_cross_entropy,
        accfun: Callable | None = F.accuracy,
        transport: str = "mpi",
        wire_dtype: Any = None,
        timeout: float = 300.0,
    ) -> None:
        mine = [stage] if isinstance(stage, Divisible) else list(stage)
        for part in mine:
            if not isinstance(part, Divisible):
                raise TypeError(f"stage must be a Divisible, not {type(part).__name__}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        mpi_comm = as_mpi(comm)
        abort_on_error(mpi_comm)
        self._comm = duplicate(mpi_comm, timeout)
        self._timeout = timeout

        mine.sort(key=lambda part: part.layer_range)
        stage_ranks, numbers = _agree_on_stages(self._comm, mine, timeout)
        self.schedule = _make_schedule(schedule, stage_ranks, n_microbatches)
        self._loss = Loss(lossfun, accfun)
        self._agree_on_arguments(stage_ranks, transport, wire_dtype)
        self._evaluation_schedule = self.schedule.forward_only()

        self._device = mine[0].device
        n_stages = len(stage_ranks)
        stages = {
            number: Stage(part, self._loss if number == n_stages - 1 else None)
            for number, part in zip(numbers, mine)
        }
        self._stages = stages
        self._first_rank, self._last_rank = stage_ranks[0], stage_ranks[-1]
        channels = self._make_transport(transport, wire_dtype)
        self._runner = Runner(stages, stage_ranks, self._comm.rank, channels)

    def _make_transport(self, name: str, wire_dtype: Any) -> Transport:
        if name == "mpi":
            return Transport(self._comm, self._timeout, self._device.xp, wire_dtype)
        if name == "chainermn":
            if wire_dtype is not None:
                raise ValueError("wire_dtype needs the transport 'mpi'")
            # ChainerMN is needed, and imported, for this transport only.
            from pipeline.chainermn_transport import ChainerMNTransport

            return ChainerMNTransport(self._comm, self._timeout)
        raise ValueError(f"transport must be 'mpi' or 'chainermn', not {name!r}")

    def _agree_on_arguments(
        self, stage_ranks: Sequence[int], transport: str, wire_dtype: Any
    ) -> None:
        # In the order in which they are compared: with another number of microbatches
        # the schedule differs as well. Different transports would wait for each other,
        # and different widths be taken for other numbers.
        texts = {
            "n_microbatches": str(self.schedule.n_microbatches),
            "schedule": str(self.schedule),
            "transport": transport,
            "wire_dtype": "None" if wire_dtype is None else np.dtype(wire_dtype).name,
            "what lossfun and accfun give": " and ".join(self._loss.names),
        }
        gathered = all_gather(
            self._comm, {k: _digest(v) for k, v in texts.items()}, self._timeout
        )
        for name in texts:
            for rank, digests in enumerate(gathered):
                if digests[name] != gathered[0][name]:
                    raise DisagreementError(
                        f"{name} differs between rank 0 and rank {rank}; this rank"
                        f" {self._comm.rank} has\n{texts[name]}"
                    )
        if tuple(self.schedule.stage_ranks) != tuple(stage_ranks):
            raise DisagreementError(
                f"the schedule {self.schedule.name!r} wants the stages on the ranks"
                f" {list(self.schedule.stage_ranks)}, but they are on the ranks"
                f" {list(stage_ranks)}"
            )

    @property
    def is_first(self) -> bool:
        """Whether this rank holds the first stage, and reads ``x``."""
        return self._comm.rank == self._first_rank

    @property
    def is_last(self) -> bool:
        """Whether this rank holds the last stage, and reads ``t``."""
        return self._comm.rank == self._last_rank

    def step(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Runs the forward and backward of one minibatch.

        Afterwards every ``param.grad`` is the gradient of the minibatch's mean
        loss; what it was before does not matter. Update the parameters with
        ``optimizer.update()``.

        Args:
            x (array or tuple of arrays): The minibatch, samples along the first
                axis, with the dtype of the model's parameters or integer. Read on
                the first stage's rank; ignored elsewhere.
            t (array or tuple of arrays): The targets, samples along the first axis.
                Read on the last stage's rank; ignored elsewhere.

        Returns:
            dict: ``'loss'`` and, with an ``accfun``, ``'accuracy'``: floats, means
            over the minibatch, equal on every rank.

        Raises:
            ValueError: If ``x`` or ``t`` is empty or their samples do not match, or
                a class label is out of range.
            TypeError: If ``x`` or ``t`` is missing where it is read, or cannot be
                trained on.
            ActionError: If a layer fails.
            StallError: If another rank does not answer in time.

        """
        inputs = self._start(x, t)
        for stage in self._stages.values():
            stage.begin()
        self._runner.run(self.schedule, inputs)
        for stage in self._stages.values():
            stage.finish()
        return self._report()

    def evaluate(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Returns the loss and accuracy of one minibatch, without training.

        Runs with ``chainer.config.train`` false. Arguments, result and errors are
        those of :meth:`step`.
        """
        inputs = self._start(x, t)
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            self._runner.run(self._evaluation_schedule, inputs)
        return self._report()

    def predict(self, x: Any = None) -> Any:
        """Returns the model's output for one minibatch.

        Runs with ``chainer.config.train`` false.

        Args:
            x (array or tuple of arrays): As in :meth:`step`.

        Returns:
            array or tuple of arrays: What the last layer returns, on every rank.

        """
        inputs = self._split_inputs(x)
        self._loss.start(None, ())
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            messages = self._runner.run(self._evaluation_schedule, inputs)
        outputs = None
        if self.is_last:
            columns = zip(*(message for message in messages if message))
            outputs = tuple(
                np.concatenate([chainer.get_device("@numpy").send(y) for y, _ in ys])
                for ys in columns
            )
        outputs = broadcast_object(self._comm, outputs, self._last_rank, self._timeout)
        outputs = tuple(self._device.send(y) for y in outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def timeline(self) -> Timeline:
        """Returns what every rank did in the last minibatch, and when.

        Recording costs two readings of the clock for each action and message, so it
        is always on. To be called on every rank.

        Returns:
            Timeline: Of all ranks, on every rank, on one clock that starts with the
            first action. A wait is a receive, from when it was needed to when it was
            there.

        Raises:
            RuntimeError: If there was no minibatch yet.

        """
        record = self._runner.record
        if record is None:
            raise RuntimeError("no minibatch has been run yet")
        offset = clock_offsets(self._comm, self._timeout)[self._comm.rank]
        events = [
            (self._comm.rank, str(operation), start - offset, end - offset)
            for operation, start, end in zip(
                record.operations, record.times[::2], record.times[1::2]
            )
        ]
        everything = sum(all_gather(self._comm, events, self._timeout), [])
        first = min(start for _, _, start, _ in everything)
        return Timeline(
            (
                (rank, text, start - first, end - first, *(["wait"] * ("<" in text)))
                for rank, text, start, end in everything
            ),
            n_ranks=self._comm.size,
            name=f"{self.schedule.name}, measured",
        )

    def _start(self, x: Any, t: Any) -> list[tuple]:
        inputs = self._split_inputs(x)
        if self.is_last:
            targets = _as_arrays("t", t, self._comm.rank, "the last stage")
            if self.is_first and len(targets[0]) != sum(map(_n_samples, inputs)):
                raise ValueError(
                    f"x has {sum(map(_n_samples, inputs))} samples and t has"
                    f" {len(targets[0])}"
                )
            parts = _split(targets, self.schedule.n_microbatches)
            sizes = [len(part[0]) for part in parts]
            parts = [tuple(map(self._device.send, part)) for part in parts]
            self._loss.start(parts, sizes)
        return inputs

    def _split_inputs(self, x: Any) -> list[tuple]:
        if not self.is_first:
            return []
        arrays = _as_arrays("x", x, self._comm.rank, "the first stage")
        layers = self._stages[0].layers
        for array in arrays:
            _check_trainable(array, layers)
        return [
            tuple(Tensor(self._device.send(array)) for array in part)
            if len(part[0])
            else ()
            for part in _split(arrays, self.schedule.n_microbatches)
        ]

    def _report(self) -> dict[str, float]:
        means = self._loss.means if self.is_last else np.empty(len(self._loss.names))
        broadcast(self._comm, means, self._last_rank, self._timeout)
        return dict(zip(self._loss.names, means.tolist()))


def _make_schedule(
    schedule: str | Schedule, stage_ranks: Sequence[int], n_microbatches: int | None
) -> Schedule:
    if isinstance(schedule, Schedule):
        if n_microbatches not in (None, schedule.n_microbatches):
            raise ValueError(
                f"n_microbatches is {n_microbatches}, but the schedule has"
                f" {schedule.n_microbatches}"
            )
        schedule.validate()
        return schedule
    if n_microbatches is None:
        raise ValueError("n_microbatches is missing")
    n_ranks = len(set(stage_ranks))
    return schedules.create(schedule, len(stage_ranks), n_microbatches, n_ranks)


def _agree_on_stages(
    comm: Any, mine: Sequence[Divisible], timeout: float
) -> tuple[list[int], list[int]]:
    """Finds the order of all ranks' stages.

    Returns:
        The rank of each stage, and the positions of this rank's stages.

    """
    model = mine[0].model_layers if mine else ()
    gathered = all_gather(comm, ([part.layer_range for part in mine], model), timeout)
    reference = gathered[0][1]
    for rank, (_, layers) in enumerate(gathered):
        if layers != reference:
            raise DisagreementError(_first_difference(reference, layers, rank))
    parts = sorted(
        (layer_range, rank)
        for rank, (ranges, _) in enumerate(gathered)
        for layer_range in ranges
    )
    position = 0
    for (start, end), rank in parts:
        if start != position:
            raise DisagreementError(
                f"rank {rank} has the layers {start} to {end - 1}, but layer"
                f" {position} comes next; the ranks have"
                f" {[ranges for ranges, _ in gathered]}"
            )
        position = end
    if position != len(reference):
        raise DisagreementError(
            f"no rank has the layers from {position} to {len(reference) - 1}; the ranks"
            f" have {[ranges for ranges, _ in gathered]}"
        )
    stage_ranks = [rank for _, rank in parts]
    numbers = [i for i, rank in enumerate(stage_ranks) if rank == comm.rank]
    return stage_ranks, numbers


def _first_difference(a: Sequence[str], b: Sequence[str], rank: int) -> str:
    if len(a) != len(b):
        return f"rank 0 divided a model of {len(a)} layers, rank {rank} one of {len(b)}"
    i = next(i for i in range(len(a)) if a[i] != b[i])
    return (
        f"rank 0 and rank {rank} built different models: layer {i} is {a[i]} on rank 0"
        f" and {b[i]} on rank {rank}"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _as_arrays(name: str, value: Any, rank: int, reader: str) -> tuple:
    if value is None:
        raise TypeError(
            f"{name} is None on rank {rank}, which has {reader} and reads it"
        )
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    for array in arrays:
        if not isinstance(array, chainer.get_array_types()):
            raise TypeError(
                f"{name} must be an array or a tuple of arrays, not"
                f" {type(array).__name__}"
            )
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(
                f"the arrays of {name} have {len(arrays[0])} and {len(array)} samples"
            )
    return tuple(arrays)


def _check_trainable(x: Any, layers: Divisible) -> None:
    if x.dtype.kind not in "fiub":
        raise TypeError(f"x is of dtype {x.dtype}, which Chainer cannot train on")
    dtypes = {p.dtype for p in layers.params() if p.dtype.kind == "f"}
    if x.dtype.kind == "f" and len(dtypes) == 1 and x.dtype not in dtypes:
        (dtype,) = dtypes
        raise TypeError(
            f"x is {x.dtype} and the parameters of the first stage are {dtype}:"
            f" convert it with x.astype('{dtype}')"
        )


def _split(arrays: Sequence[Any], n_microbatches: int) -> list[tuple]:
    """Cuts along the first axis; the first microbatches get one sample more."""
    n = len(arrays[0])
    each, extra = divmod(n, n_microbatches)
    ends = [i * each + min(i, extra) for i in range(n_microbatches + 1)]
    return [
        tuple(array[start:end] for array in arrays)
        for start, end in zip(ends, ends[1:])
    ]


def _n_samples(message: Sequence[Tensor]) -> int:
    return len(message[0].array) if message else 0
