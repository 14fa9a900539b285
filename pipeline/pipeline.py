"""The pipeline as a training script sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from divisible import Divisible
from divisible.communication.aborting import abort_on_error
from divisible.communication.collectives import (
    all_gather,
    as_mpi,
    broadcast,
    broadcast_object,
    clock_offsets,
    duplicate,
)
from divisible.communication.signatures import Tensor, Tensors
from divisible.communication.transport import Transport
from divisible.dtypes import as_trainable
from divisible.minibatch import as_arrays
from divisible.random_streams import restored_random_state
from divisible.schedules.actions import Action, Operation
from divisible.schedules.automatic import AUTO, Trial
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline
from pipeline.agreement import (
    agree_on_loss,
    agree_on_settings,
    agree_on_stages,
    check_placement,
    parameter_dtypes,
    warn_of_many_threads,
)
from pipeline.arguments import (
    check_loss_scale,
    check_losses,
    check_seed,
    check_stages,
    check_transport,
    make_schedule,
    warn_of_float16,
)
from pipeline.call_agreement import CALLS, CallAgreement
from pipeline.minibatch import join, split
from pipeline.rank_program import RankProgram, Record
from pipeline.ranks import Ranks
from pipeline.runner import Runner
from pipeline.stages.loss import Loss
from pipeline.stages.reports import PendingReports
from pipeline.stages.reports import means as means_of_reports
from pipeline.stages.stage import Stage
from pipeline.tie_exchange import TieExchange


class Pipeline:
    """Trains a model whose stages lie on the ranks of a communicator.

    Every rank makes a pipeline of its own stage and calls the same methods. A
    minibatch is cut into microbatches, as equal as they come, which pass through the
    stages in the order of a schedule. The loss and the gradients are those of the
    undivided model on the undivided minibatch, if ``lossfun`` is a mean over the
    samples. Layers that look at a whole batch see a microbatch: batch normalization
    normalizes over it. Its running averages move once for each minibatch, by mean and
    variance over all of its samples. What random layers draw depends on the seed, the
    minibatch, the microbatch and their position, not on the cut or the schedule.

    On one rank this is serial training.

    Args:
        stage (Divisible or list of Divisible): This rank's part of the model; several
            parts for a schedule with several stages on a rank.
        comm: A ChainerMN communicator or an mpi4py one. The ranks' stages must
            follow each other and make up the whole model.
        n_microbatches (int): Number of microbatches to cut a minibatch into. A
            minibatch with fewer samples is cut into single samples.
        schedule (str or Schedule): One of ``divisible.schedules.NAMES``, such as
            ``'1f1b'``, which says how stages lie on ranks; or ``'auto'``, for any
            placement, which runs four minibatches and goes on with what is fastest by
            simulation of their times; no rank holds more microbatches than the first
            one does with ``'1f1b'``.
        lossfun: ``lossfun(*outputs, *targets)``, a mean over the samples; used on
            the last stage.
        accfun: The same for the accuracy; ``None`` for none.
        transport (str): ``'mpi'``, or ``'chainermn'`` for the blocking sends and
            receives of ChainerMN, the reference to measure against, for stages in
            host memory.
        checkpoint (str): Which microbatches hold only their stage's input between
            forward and backward, and are computed again for the backward: ``'never'``,
            ``'except_last'`` or ``'always'``; see
            :mod:`divisible.schedules.recomputation`.
            Layers that were appended with ``recompute=True`` always are. What a
            recomputed layer does besides returning its output, it does twice.
        seed (int): For the layers' random numbers, and for the weights of layers that
            are sized at their first call. Replicas of a pipeline need one each, or
            their masks are the same. Of the global generators, only NumPy's and CuPy's
            are seeded; a thread that draws from NumPy's during a step gets, and takes
            away, numbers of the layers.
        deferred_batch_norm (bool): Whether running averages of batch normalization
            move once for each minibatch, not once for each microbatch. Those of
            ``DecorrelatedBatchNormalization`` cannot be put together from parts, and
            always move for each microbatch.
        wire_dtype: A narrower dtype, such as ``numpy.float16``, in which to send
            floating-point arrays between the stages; only with ``'mpi'``.
        timeout (float): Seconds to wait for another rank before giving up.
        loss_scale: What gradients are multiplied by until the optimizer divides them
            again, so that they do not vanish in float16: a number, or the
            ``loss_scale`` of a :class:`~mixed_precision.MixedPrecision`, whose value is
            read in every step. Equal on all ranks.

    A model with float16 parameters gets its floating-point inputs in float16, and its
    outputs are cast to float32 for ``lossfun``. Gradients of microbatches are added up
    in float32 and rounded once.

    Attributes:
        schedule (Schedule): What :meth:`step` runs; with ``'auto'`` another one from
            the fifth minibatch on.
        n_steps (int): How many minibatches :meth:`step` has run. A pipeline can be
            saved and loaded with Chainer's serializers; this is its state.
        ranks (Ranks): What the ranks tell each other besides arrays.

    Raises:
        DisagreementError: On every rank, if the ranks' stages do not make up one
            model, or their arguments differ, or a layer with running averages is in
            two stages.
        ValueError: If an argument is out of range.
        TypeError: If an argument is of the wrong type, or a layer goes on from where
            its last call ended (``L.LSTM``).

    Example:
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

    See section 3 of Takisawa et al. (2022); :func:`~pipeline.send_data` and the
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
        checkpoint: str = "never",
        seed: int = 0,
        deferred_batch_norm: bool = True,
        loss_scale: Any = None,
    ) -> None:
        # First of all: others may wait already for a rank that refuses its arguments.
        abort_on_error()
        mine = check_stages(stage)
        check_transport(transport, wire_dtype, mine[0].device)
        seed = check_seed(seed)
        check_losses(lossfun, accfun)
        check_loss_scale(loss_scale)
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        self._comm = duplicate(as_mpi(comm), timeout)
        self._timeout = timeout

        layout = agree_on_stages(self._comm, mine, timeout)
        stage_ranks = layout.stage_ranks
        self.schedule = recompute(
            make_schedule(schedule, stage_ranks, n_microbatches), checkpoint
        )
        self._trial = None
        if schedule == AUTO:
            n_microbatches = self.schedule.n_microbatches
            self._trial = Trial(stage_ranks, n_microbatches, checkpoint)
        self._loss = Loss(lossfun, accfun)
        agree_on_settings(
            self._comm,
            {
                "n_microbatches": str(self.schedule.n_microbatches),
                "checkpoint": checkpoint,
                "schedule": f"{schedule if self._trial else ''}{self.schedule}",
                "transport": transport,
                "wire_dtype": str(wire_dtype and np.dtype(wire_dtype)),
                "seed": str(seed),
                "deferred_batch_norm": str(bool(deferred_batch_norm)),
                "what lossfun and accfun give": ", ".join(self._loss.names),
                "loss_scale": str(loss_scale and float(loss_scale)),
            },
            timeout,
        )
        check_placement(self.schedule, stage_ranks)
        is_last = stage_ranks[-1] == self._comm.rank
        agree_on_loss(
            self._comm, mine[-1] if is_last else None, self._loss.params(), timeout
        )
        if not is_last:
            # Chainer's gradients begin as NaN, and here nothing else clears these.
            for param in self._loss.params():
                param.cleargrad()
        self._calls = CallAgreement(self._comm, timeout)
        self._dtypes = parameter_dtypes(self._comm, mine, timeout)
        self._loss_scale = loss_scale
        warn_of_float16(self._dtypes, loss_scale, self._comm.rank)
        warn_of_many_threads(self._comm, timeout)

        self._device = mine[0].device
        last = len(stage_ranks) - 1
        numbers = [i for i, rank in enumerate(stage_ranks) if rank == self._comm.rank]
        self._stages = {
            number: Stage(
                part,
                self._loss if number == last else None,
                seed,
                deferred_batch_norm,
            )
            for number, part in zip(numbers, mine)
        }
        self._ties = None
        if layout.shared:
            with chainer.using_device(self._device):
                self._ties = TieExchange(
                    layout.shared,
                    dict(zip(numbers, mine)),
                    stage_ranks,
                    self._comm,
                    timeout,
                )
            self._ties.transport.watch = self._calls.check
        self.n_steps = 0
        self._reports = {call: PendingReports() for call in CALLS}
        self._first_rank, self._last_rank = stage_ranks[0], stage_ranks[-1]
        self.ranks = Ranks(
            self._comm, self._calls, self._first_rank, self._last_rank, timeout
        )
        channels = self._make_transport(transport, wire_dtype)
        channels.watch = self._calls.check
        rank = self._comm.rank
        routes = layout.routes
        self._runner = Runner(self._stages, stage_ranks, rank, channels, routes)
        self._runner.waits_for_device = self._trial is not None

        def program(schedule: Schedule) -> RankProgram:
            return RankProgram.of(schedule, rank, channels.rendezvous, routes)

        self._program = program
        self._training = program(self.schedule)
        self._evaluation = program(self.schedule.forward_only())

    def _make_transport(self, name: str, wire_dtype: Any) -> Any:
        if name == "mpi":
            return Transport(self._comm, self._timeout, self._device.xp, wire_dtype)
        # ChainerMN is needed, and imported, for this transport only.
        from pipeline.chainermn import ChainerMNTransport

        return ChainerMNTransport(self._comm, self._timeout)

    @property
    def rank(self) -> int:
        """This rank's number among those of the pipeline."""
        return self._comm.rank

    @property
    def stages(self) -> dict[int, Divisible]:
        """This rank's stages by their numbers in the pipeline."""
        return {number: stage.layers for number, stage in self._stages.items()}

    @property
    def is_first(self) -> bool:
        """Whether this rank holds the first stage, and reads ``x``."""
        return self._comm.rank == self._first_rank

    @property
    def is_last(self) -> bool:
        """Whether this rank holds the last stage, and reads ``t``."""
        return self._comm.rank == self._last_rank

    @property
    def loss_links(self) -> dict[str, chainer.Link]:
        """``lossfun`` and ``accfun`` by ``'loss'`` and ``'accuracy'``, if links.

        Those of the last stage's rank are the ones that are trained.
        """
        return self._loss.links

    def step(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Runs the forward and backward of one minibatch.

        Afterwards every ``param.grad`` is the gradient of the minibatch's mean
        loss; what it was before does not matter. Update the parameters with
        ``optimizer.update()``.

        Args:
            x (array or tuple of arrays): The minibatch, samples along the first
                axis, with the dtype of the model's parameters or integer; for float16
                parameters of any floating-point dtype. Read on the first stage's rank;
                ignored elsewhere.
            t (array or tuple of arrays): The targets, samples along the first axis.
                Read on the last stage's rank; ignored elsewhere.

        Returns:
            dict: ``'loss'`` and, with an ``accfun``, ``'accuracy'``: floats, means
            over the minibatch, equal on every rank. Besides, what layers of any stage
            gave to :func:`chainer.report`, as means over the samples, which are
            counted along the first axis of a stage's first input: what layer 3
            reports as ``x`` is ``'/3/x'``. (From a layer that begins to report after
            the first minibatch, the first values are in the result of the next one.)

        Raises:
            ValueError: If ``x`` or ``t`` is empty, or a class label is negative.
            TypeError: If ``x`` or ``t`` is missing where it is read, or cannot be
                trained on.
            DisagreementError: If the ranks make different calls, or ``x`` and ``t``
                have different numbers of samples, or the loss scales differ.
            ActionError: If a layer or ``lossfun`` fails, or a class label is too large
                for the model's outputs.
            StallError: If another rank does not answer in time.
        """
        scaled, backprop = self._scaled_loss(), chainer.force_backprop_mode()
        with self._call("step"), scaled as loss_scale, backprop:
            inputs = self._start(x, t, loss_scale)
            self._run(self._training, inputs)
            for stage in self._stages.values():
                stage.finish()
                for param in stage.trained():
                    # As Variable.backward does; update rules divide by it.
                    param._loss_scale = loss_scale
            if self._ties is not None:
                self._ties.add_up()
            self.n_steps += 1
            means = self._report()
        if self._trial is not None and self._trial.note(self.timeline):
            self._end_trial()
        return means

    def evaluate(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Returns the loss and accuracy of one minibatch, without training.

        Runs with ``chainer.config.train`` false. Arguments, result and errors are
        those of :meth:`step`.
        """
        with self._call("evaluate"), _evaluating():
            self._run(self._evaluation, self._start(x, t))
            return self._report()

    def predict(self, x: Any = None) -> Any:
        """Returns the model's output for one minibatch.

        Runs with ``chainer.config.train`` false.

        Args:
            x (array or tuple of arrays): As in :meth:`step`.

        Returns:
            array or tuple of arrays: What the last layer returns, on every rank.
        """
        with self._call("predict"), _evaluating():
            inputs = self._split_inputs(x)
            self._loss.start(None)
            self._calls.start()
            results = self._run(self._evaluation, inputs)
            outputs = join(results) if self.is_last else None
            self._calls.finish()
            outputs = broadcast_object(
                self._comm, outputs, self._last_rank, self._timeout
            )
            outputs = tuple(map(self._device.send, outputs))
            return outputs[0] if len(outputs) == 1 else outputs

    @property
    def n_counted(self) -> dict[str, int]:
        """The number of samples that the last loss and the last accuracy are means of.

        By name; known on the last stage's rank.
        """
        return self._loss.n_counted

    @property
    def record(self) -> Record | None:
        """What this rank did in the last minibatch, and when."""
        return self._runner.record

    def timeline(self) -> Timeline:
        """Returns what every rank did in the last minibatch, and when.

        Recording costs two readings of the clock for each action and message, so it
        is always on. To be called on every rank. On a GPU the times are of launches:
        the device works behind them.

        Returns:
            Timeline: Of all ranks, on every rank, on one clock that starts with the
            first action. A wait is a receive, from when it was needed to when it was
            there.

        Raises:
            RuntimeError: If there was no minibatch yet.
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time.
        """
        record = self._runner.record
        if record is None:
            raise RuntimeError("no minibatch has been run yet")
        with self._call("timeline"):
            self._calls.start()
            self._calls.finish()
            offset = clock_offsets(self._comm, self._timeout)[self._comm.rank]
            times = np.array(record.times) - offset
            gathered = all_gather(
                self._comm,
                (record.program.operations, times),
                self._timeout,
                "to tell what they did",
            )
        first = min(times[0] for _, times in gathered if len(times))
        return Timeline(
            (
                (rank, what, start, end, _category(what))
                for rank, (operations, times) in enumerate(gathered)
                for what, start, end in zip(
                    operations, times[::2] - first, times[1::2] - first
                )
            ),
            n_ranks=self._comm.size,
            name=f"{record.program.name}, measured",
        )

    def gather(self, value: Any, call: str) -> list:
        """Returns every rank's ``value``, in rank order.

        Args:
            value: Any picklable object.
            call (str): What the ranks do, ``'save'`` or ``'load'``; all must do the
                same at this point.

        Raises:
            DisagreementError: On every rank, if they do not.
            StallError: If another rank does not come in time.
        """
        with self._call(call):
            self._calls.start()
            self._calls.finish()
            return all_gather(self._comm, value, self._timeout, f"to {call}")

    def close(self) -> None:
        """Frees the pipeline's communicator; to be called on every rank.

        Needed only where many pipelines are made in one process. A pipeline is a
        context manager that closes itself. After a call that failed, and if it is
        closed already, it does nothing.

        Raises:
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time, or has left.
        """
        # A failed call may have messages under way, which hold on to everything.
        if self._calls.has_failed or self._comm == MPI.COMM_NULL:
            return
        # A rank that closed alone could not tell others that wait for it.
        with self._call("close"):
            self._calls.start()
            self._calls.finish()
        self._runner.close()
        self.ranks.close()
        if self._ties is not None:
            self._ties.close()
        self._comm.Free()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes what random layers depend on: how many steps there were."""
        self.n_steps = int(serializer("n_steps", self.n_steps))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error the other ranks are not there to close with.
        if error is None:
            self.close()

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """Counts a call, and sees to it that none follows one that failed.

        Within, the device of the stages is the current one: where a host has several
        GPUs, it need not be that of the script.
        """
        with self._calls.made(name):
            try:
                with chainer.using_device(self._device):
                    yield
            except BaseException:
                if self._comm.size > 1:
                    # MPI may still write into the arrays of receives that were posted,
                    # up to its end, which comes after Python has freed everything. So
                    # nothing is.
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
                raise

    def _run(self, program: RankProgram, inputs: Sequence[Tensors]) -> list[Any]:
        for stage in self._stages.values():
            stage.begin(self.n_steps)
        with restored_random_state(self._device):
            return self._runner.run(program, inputs)

    @contextmanager
    def _scaled_loss(self) -> Iterator[float | None]:
        """Scales the loss in one step."""
        if self._loss_scale is None:
            yield None
            return
        self._loss.scale = float(self._loss_scale)
        # Whoever chose the scale looks for infinities.
        with np.errstate(over="ignore", invalid="ignore"):
            yield self._loss.scale

    def _end_trial(self) -> None:
        """Goes on with the schedule that is the fastest by what was measured."""
        with self._call("agree"):
            self._calls.start()
            self._calls.finish()
            # Rank 0 says what it is, so that no rounding elsewhere makes it another.
            chosen = self._trial.choose() if self._comm.rank == 0 else None
            chosen = broadcast_object(self._comm, chosen, 0, self._timeout)
        self._trial = None
        self._runner.waits_for_device = False
        self.schedule, self._training = chosen, self._program(chosen)

    def _start(self, x: Any, t: Any, loss_scale: float | None = None) -> list[Tensors]:
        inputs = self._split_inputs(x)
        n_inputs = sum(map(_n_samples, inputs)) if self.is_first else -1
        n_targets = -1
        if self.is_last:
            targets = as_arrays("t", t, self._reads("last"))
            n_targets = len(targets[0])
            parts = split(targets, self.schedule.n_microbatches)
            self._loss.start(parts, self._device)
        reports = self._reports[self._calls.call].are_expected
        self._calls.start(n_inputs, n_targets, reports, loss_scale=loss_scale)
        return inputs

    def _split_inputs(self, x: Any) -> list[Tensors]:
        if not self.is_first:
            return []
        arrays = [
            as_trainable(array, self._dtypes)
            for array in as_arrays("x", x, self._reads("first"))
        ]
        return [
            tuple(Tensor(self._device.send(array)) for array in part)
            if len(part[0])
            else ()
            for part in split(arrays, self.schedule.n_microbatches)
        ]

    def _reads(self, which: str) -> str:
        return f" on rank {self.rank}, which has the {which} stage and reads it"

    def _report(self) -> dict[str, float]:
        means = self._loss.means if self.is_last else np.empty(len(self._loss.names))
        self._calls.finish()
        broadcast(self._comm, means, self._last_rank, self._timeout)
        return {**self._gather_reports(), **dict(zip(self._loss.names, means.tolist()))}

    def _gather_reports(self) -> dict[str, float]:
        """Returns what layers reported, if some rank announced it with the call.

        Most models report nothing, and then the ranks need not wait for each other.
        """
        pending = self._reports[self._calls.call]
        pending.add(stage.reports.sums() for stage in self._stages.values())
        if not self._calls.somebody_reports:
            return {}
        gathered = all_gather(
            self._comm, pending.take(), self._timeout, "to tell what layers reported"
        )
        return means_of_reports([sums for rank in gathered for sums in rank])


@contextmanager
def _evaluating() -> Iterator[None]:
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        yield


def _category(what: Operation) -> str:
    """Returns the timeline's category; a receive is a wait."""
    if isinstance(what, Action):
        return what.kind
    return "send" if what.direction == "send" else "wait"


def _n_samples(message: Sequence[Tensor]) -> int:
    return len(message[0].array) if message else 0
