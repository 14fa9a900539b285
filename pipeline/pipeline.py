"""The pipeline as a training script sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable

import chainer
import chainer.functions as F

from data_parallel import Grid
from divisible import Divisible, Machine, Plan
from divisible.communication.aborting import abort_on_error
from divisible.communication.errors import TIMEOUT
from divisible.communication.waiting import never_free
from divisible.schedules.schedule import Schedule
from pipeline.calls.ranks import Ranks
from pipeline.planned import Planned
from pipeline.start.agreement import Start
from pipeline.start.arguments import Arguments
from pipeline.start.opening import PlanWish, open_plan
from pipeline.start.replicas import begin_alike
from pipeline.start.starting import agree_on_start
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.fused_layers import FusedLayers
from pipeline.step.step import Step


class Pipeline(Planned):
    """Trains a model whose stages lie on the ranks of a communicator.

    Every rank makes a pipeline of the same model, which the pipeline divides, and calls
    the same methods. A minibatch is cut into microbatches, as equal as they come, which
    pass through the stages in the order of a schedule. The loss and the gradients are
    those of the undivided model on the undivided minibatch, if ``lossfun`` is a mean
    over samples. Batch normalization normalizes over a microbatch. Its running averages
    move once for each minibatch, by mean and variance over all of its samples. What
    random layers draw depends on the seed, the minibatch, the microbatch and their
    position alone. On one rank this is serial training.

    Args:
        stage (Divisible or list of Divisible): The undivided model, built alike on all
            ranks. Each rank keeps its own layers, as the plan says, or equally many;
            in :func:`~divisible.deferred_init` it makes no others. Or this rank's
            stage, divided by hand; or a list of stages, for a schedule with several on
            a rank. Then the ranks' stages must follow each other and make up the model.
        comm: A ChainerMN communicator or an mpi4py one. Or a
            :class:`~data_parallel.Grid` of replicas, which begin alike; each reads its
            part of a minibatch and has its gradients, until the optimizer exchanges
            them.
        n_microbatches (int): Number of microbatches to cut a minibatch into. A
            minibatch with fewer samples is cut into single samples. This, ``schedule``,
            ``recompute``, ``hold_in`` and ``fuse`` are what the plan says where they
            are not given; given ones win, with a warning if the plan says otherwise.
        schedule (str or Schedule): One of ``divisible.schedules.NAMES``, which says how
            stages lie on ranks, by default ``'1f1b'``; or ``'auto'``, for any
            placement, which runs four minibatches and goes on with what is fastest by
            simulation of their times; no rank holds more microbatches than the first
            one does with ``'1f1b'``.
        lossfun: ``lossfun(*outputs, *targets)``, a mean over the samples, or that and
            how many samples it is a mean of; used on the last stage.
        accfun: The same for the accuracy; ``None`` for none.
        transport (str): ``'mpi'``, or, to measure against, ``'chainermn'`` for its
            blocking sends and receives, of stages in host memory.
        recompute (str): Which microbatches hold only their stage's input between
            forward and backward, and are computed again for the backward: ``'never'``,
            ``'except_last'`` or ``'always'``; see
            :mod:`divisible.schedules.recomputation`. Those of layers appended with
            ``recompute=True`` always are. What a layer does besides, it does twice.
        seed (int): For the layers' random numbers, and for the weights of layers that
            are sized at their first call. Replicas on a grid count their microbatches
            together. Of the global generators, only NumPy's and CuPy's are seeded; a
            thread that draws from NumPy's during a step gets numbers of the layers.
        deferred_batch_norm (bool): Whether running averages of batch normalization
            move once for each minibatch, not once for each microbatch. Those of
            ``DecorrelatedBatchNormalization`` cannot be put together from parts, and
            always move for each microbatch.
        message_dtype (str or None): The dtype in which wider floating-point arrays
            travel between the stages, only with ``'mpi'``: ``'fp16'``, or ``'fp32'``,
            which changes nothing for a float32 model; ``None`` for their own.
        timeout (float): Seconds to wait for another rank before giving up.
        loss_scale: What gradients are multiplied by until the optimizer divides them
            again: a number, or the ``loss_scale`` of a
            :class:`~mixed_precision.MixedPrecision`, read in every step. Equal on all
            ranks.
        hold_in (str or path): The place where this rank's microbatches wait for their
            backward: ``'memory'``; a directory, for a file there; or ``'disk'``, for
            the directory of temporary files. See :mod:`pipeline.stages.held_elsewhere`.
            With a plan, a directory is the place for all that the plan has on disk,
            weights as well; ``'memory'`` and ``'disk'`` win over the plan.
        fuse: Which chains of pointwise layers, with a batch normalization or behind a
            product, run as one function: ``'auto'`` for those that are faster in the
            first minibatch, ``'none'``, or a plan's ``fusion``. But for ``'none'``,
            :meth:`predict` and :meth:`evaluate` fold a batch normalization into the
            convolution or ``Linear`` right before it, in the same stage, also within
            layers that are marked :func:`~chainer_kernels.fusible`. That changes the
            last bits, so these differ between a cut between the two and another.
        plan (Plan, path or 'auto'): What to run: where the model is cut, and how. A
            plan with replicas makes a grid of ``comm``. The file of a plan is read on
            rank 0. ``'auto'`` measures the layers on rank 0, and takes the plan of
            :func:`~divisible.best_plan` that uses all ranks; what is given besides is
            kept. Where memory does not suffice, microbatches wait on disk, and weights
            of deferred layers are there. ``divisible run --plan FILE`` replaces
            ``'auto'`` by the plan in a file. See :doc:`/howto/cut`.
        x (array or tuple of arrays): For ``'auto'``, inputs of a first minibatch; read
            on rank 0.
        t (array or tuple of arrays): The same of targets.
        machine (Machine): For ``'auto'``, the memory, the speeds and the links of the
            ranks. By default what the ranks find: the memory that is left, shared by
            the ranks of a host, and times of a product and of messages. Memory of a GPU
            is not looked for.
        directory: For ``'auto'``, where ``plan.json`` is kept, such as where the run
            has its snapshots. A run that finds it there takes the same plan, if it is
            for this model and so many ranks.

    A model with float16 parameters gets its floating-point inputs in float16, and its
    outputs are cast to float32 for ``lossfun``. Gradients of microbatches are added up
    in float32 and rounded once.

    Attributes:
        rank (int): This rank's number among those of the pipeline; on a grid, of its
            replica.
        is_first (bool): Whether this rank holds the first stage, and reads ``x``.
        is_last (bool): Whether this rank holds the last stage, and reads ``t``.
        grid (Grid or None): The grid, as given, or made for the plan.
        fusion (FusedLayers): The chains that run as one function; printed, a table.
        cuts (list of int): Where the layers are cut, as in a :class:`~divisible.Plan`.

    Raises:
        DisagreementError: On every rank, if the ranks' stages do not make up one
            model, or their arguments differ, or a layer with running averages is in
            two stages; on the others, if a rank refuses its arguments.
        ValueError: If an argument is out of range.
        TypeError: If an argument is of the wrong type.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> model = Divisible(L.Linear(4, 8), L.Linear(8, 3))
        >>> pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
        >>> optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
        >>> x, t = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
        >>> first = pipe.step(x, t)['loss']
        >>> optimizer.update()
        >>> pipe.evaluate(x, t)['loss'] < first
        True
        >>> print(pipe)
        2 layers in 1 stage on 1 rank, 1f1b schedule, 2 microbatches
        stage  rank  layers                  in flight
            0     0    0..1  Linear, Linear          1

    See section 3 of Takisawa et al. (2022).
    """

    def __init__(
        self,
        stage: Divisible | Sequence[Divisible],
        comm: Any,
        *,
        n_microbatches: int | None = None,
        schedule: str | Schedule | None = None,
        lossfun: Callable = F.softmax_cross_entropy,
        accfun: Callable | None = F.accuracy,
        transport: str = "mpi",
        message_dtype: str | None = None,
        timeout: float = TIMEOUT,
        recompute: str | None = None,
        seed: int = 0,
        deferred_batch_norm: bool = True,
        loss_scale: Any = None,
        hold_in: str | os.PathLike | None = None,
        fuse: str | Sequence[tuple[int, int]] | None = None,
        plan: Plan | str | os.PathLike | None = None,
        x: Any = None,
        t: Any = None,
        machine: Machine | None = None,
        directory: str | os.PathLike | None = None,
    ) -> None:
        # First of all: others may wait already for a rank that fails here.
        abort_on_error()
        arguments = Arguments(
            stages=stage,
            n_microbatches=n_microbatches,
            schedule=schedule,
            lossfun=lossfun,
            accfun=accfun,
            transport=transport,
            message_dtype=message_dtype,
            timeout=timeout,
            recompute=recompute,
            seed=seed,
            deferred_batch_norm=deferred_batch_norm,
            loss_scale=loss_scale,
            hold_in=hold_in,
            fuse=fuse,
        )
        wish = PlanWish(plan, x, t, machine, directory)
        opening = open_plan(comm, arguments, wish)
        comm = opening.comm
        start = agree_on_start(comm, opening.arguments)
        self._loss, self._arguments = start.loss, start.arguments
        current = CurrentSchedule(start.arguments, start.stage_ranks)
        self.grid = comm if isinstance(comm, Grid) else None
        self._ranks = ranks = Ranks(comm, start.stage_ranks, timeout, start.name)
        self.rank, self._calls = ranks.rank, ranks.calls
        self.is_first, self.is_last = (
            ranks.rank == ranks.first,
            ranks.rank == ranks.last,
        )
        self.fusion = FusedLayers(start.arguments.stages, start.arguments.fuse)
        self._step = Step(start, current, ranks)
        self._lay_out(start)
        begin_alike(ranks.grid, self.stages, timeout)
        self._device = start.arguments.stages[0].device
        self._keep_plan(opening, start)

    def _lay_out(self, start: Start) -> None:
        """Lays out the stages; what else was agreed on stays."""
        given = start._replace(arguments=self._arguments, loss=self._loss)
        self._step.lay_out(given)
        self.cuts = start.cuts

    @property
    def n_steps(self) -> int:
        """How many minibatches :meth:`step` has run."""
        return self._step.n_steps

    def step(
        self, x: Any = None, t: Any = None, optimizer: Any = None
    ) -> dict[str, float]:
        """Runs the forward and backward of one minibatch.

        Afterwards every ``param.grad`` is the gradient of the minibatch's mean
        loss; what it was before does not matter. Update the parameters with
        ``optimizer.update()``. Those exchanged during the step are there after that.

        Args:
            x (array or tuple of arrays): The minibatch, samples along the first
                axis, with the dtype of the model's parameters or integer; for float16
                parameters of any floating-point dtype. Read on the first stage's rank;
                ignored elsewhere.
            t (array or tuple of arrays): The targets, samples along the first axis.
                Read on the last stage's rank; ignored elsewhere. ``None`` everywhere
                if ``lossfun`` and ``accfun`` take outputs alone.
            optimizer (chainer.Optimizer or list): That, or those, of which the script
                calls ``update`` after this, before anything else. So a streamed layer
                may be updated while its gradient comes, if no hook looks at it; then
                the gradient is NaN afterwards. :class:`PipelineUpdater` gives its own.

        Returns:
            dict: ``'loss'`` and, with an ``accfun``, ``'accuracy'``: floats, means
            over the minibatch of all replicas, equal on every rank. Besides, what
            layers of any stage gave to :func:`chainer.report`, as means over the
            samples, which are counted along the first axis of a stage's first input:
            what layer 3 reports as ``x`` is ``'/3/x'``. (From a layer that begins after
            the first minibatch, the first values are in the result of the next one.)

        Raises:
            ValueError: If ``x`` or ``t`` is empty, or a class label is negative.
            TypeError: If ``x`` or ``t`` is missing where it is read, or cannot be
                trained on.
            DisagreementError: If the ranks make different calls, or ``x`` and ``t``
                have different numbers of samples, or the loss scales differ, or ``x``
                has more samples than states are carried from the minibatch before.
            ActionError: If a layer or ``lossfun`` fails, or a class label is too large
                for the model's outputs.
            StallError: If another rank does not answer in time.
        """
        if self._own_grid is not None:
            self._check_set_up()
        with self._call("step"):
            result = self._step.train(x, t, optimizer)
        if self._step.current.trial is not None:
            self._step.current.note(self.timeline, self._ranks, self._step.runner)
        if self.fusion.is_open:
            self.fusion.choose(self._ranks)
        return result

    def evaluate(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Returns the loss and accuracy of one minibatch, without training.

        Runs with ``chainer.config.train`` false. Arguments, result and errors are
        those of :meth:`step`.
        """
        with self._call("evaluate"):
            return self._step.evaluate(x, t)

    def predict(self, x: Any = None, axis: int | Sequence[int] = 0) -> Any:
        """Returns the model's output for one minibatch.

        Runs with ``chainer.config.train`` false.

        Args:
            x (array or tuple of arrays): The inputs, as in :meth:`step`; an empty tuple
                for a replica that has no samples where another one has.
            axis (int or tuple of ints): Along which axis the outputs have the samples;
                one for all outputs, or one for each. Read on the last stage's rank.

        Returns:
            array or tuple of arrays: The outputs of the last layer, on every rank. A
            replica without samples gets arrays of no samples.

        Raises:
            ValueError: On every rank, if the samples are not along that axis, or there
                are none in any replica.
        """
        with self._call("predict"):
            outputs = self._step.predict(x, axis)
            return outputs[0] if len(outputs) == 1 else outputs

    def reset_states(self) -> None:
        """Lets layers begin anew that carry a state; a call of all ranks.

        Those that :func:`divisible.carry_state` declares, in training and evaluation.
        """
        with self._call("reset"):
            self._calls.compare()
            self._step.reset_states()

    def global_hooks(self, optimizer: Any) -> None:
        """Lets the hooks of optimizers see the whole model, as in serial training.

        To be called on every rank, after ``optimizer.setup(stage)``;
        :class:`PipelineUpdater` does it by itself. Hooks may be added later. Then
        ``GradientClipping`` clips by the norm over all stages, and ``GradientNoise``
        draws for each parameter the same on every cut: :doc:`/explanation/numerics`.

        Args:
            optimizer (chainer.Optimizer or list): One, or all of this rank as one.

        Raises:
            TypeError, ValueError: If one is no optimizer, or not set up.

        Example:
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> optimizer = chainer.optimizers.SGD(0.1).setup(stage)
            >>> optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
            >>> from mpi4py import MPI
            >>> Pipeline(stage, MPI.COMM_SELF, n_microbatches=2).global_hooks(optimizer)
        """
        self._step.updates.hooks.add(optimizer)

    @property
    def n_counted(self) -> dict[str, float]:
        """How many samples the last loss and accuracy are means of, in all replicas."""
        return self._step.n_counted

    @property
    def n_samples(self) -> int | None:
        """How many samples this replica's last gradients are a mean of.

        ``None`` if no replica has any. Give it to an optimizer that exchanges them.
        """
        return self._step.n_samples

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes how many steps there were, and what layers are fused."""
        self._step.serialize(serializer)
        if self.fusion.chains or isinstance(serializer, chainer.Deserializer):
            self.fusion.serialize(serializer)

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """Counts a call, and ensures that none follows one that failed.

        Within, the device of the stages is the current one: where a host has several
        GPUs, it need not be that of the script.
        """
        with self._calls.made(name):
            try:
                with chainer.using_device(self._device):
                    yield
            except BaseException:
                if self._ranks.world.size > 1:
                    # MPI may still write into the arrays of receives that were posted.
                    never_free(self)
                raise
