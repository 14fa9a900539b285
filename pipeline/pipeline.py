"""The pipeline, as training scripts use it."""

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
from divisible.communication.errors import TIMEOUT, DisagreementError, StallError
from divisible.communication.waiting import never_free
from divisible.keywords import names_keywords
from divisible.schedules.schedule import Schedule
from pipeline.calls.call_agreement import ACCUMULATES
from pipeline.calls.ranks import Ranks
from pipeline.start.agreement import Start
from pipeline.start.arguments import Arguments
from pipeline.start.opening import PlanWish, open_plan
from pipeline.start.replicas import begin_alike
from pipeline.start.starting import agree_on_start
from pipeline.step.accumulated import begin_accumulating
from pipeline.step.action_error import ActionError
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.fused_layers import FusedLayers
from pipeline.step.two_versions import make_step
from pipeline.with_copies import WithCopies

# Errors whose message has the number of the step: ranks may be in different ones.
_OF_RANKS = (ActionError, DisagreementError, StallError)


class Pipeline(WithCopies):
    """Trains a model whose stages lie on the ranks of a communicator.

    Every rank makes a pipeline of the same model, which the pipeline divides, and calls
    the same methods. A minibatch is cut into microbatches of nearly equal size, which
    pass through the stages in the order of a schedule. If ``lossfun`` is a mean over
    samples, the loss and the gradients are those of the undivided model on the
    undivided minibatch. Batch normalization normalizes over a microbatch. Its running
    averages move once per minibatch, by the mean and variance over all of its samples.
    Random numbers of layers depend only on the seed, the minibatch, the microbatch and
    the layer's position. On one rank, this is serial training.

    Args:
        stage (Divisible or list of Divisible): The undivided model, built alike on all
            ranks. Each rank keeps its own layers, by the plan or in equal numbers. In
            :func:`~divisible.deferred_init` a rank makes only its own layers. Or this
            rank's stage, divided by hand; or a list of stages, for a schedule with
            several per rank. The stages of all ranks then make up the model in order.
        comm: A ChainerMN communicator, or one of mpi4py. Or a
            :class:`~data_parallel.Grid` of replicas, which begin with equal parameters.
            Each replica reads its part of a minibatch and has its own gradients, until
            the optimizer exchanges them.
        n_microbatches (int): Number of microbatches to cut a minibatch into. A
            minibatch with fewer samples is cut into single samples. This argument,
            ``schedule``, ``recompute``, ``hold_in``, ``hold_dtype``, ``fuse`` and
            ``weight_groups`` come from the plan unless given, with a warning.
        schedule (str or Schedule): One of ``divisible.schedules.NAMES``, by default
            ``'1f1b'``; the name determines on which ranks the stages lie. Only
            ``'pipedream_2bw'`` trains another way, with gradients one step late. Or
            ``'auto'``, for any placement: the first four minibatches measure the
            stages, and the schedule that is the fastest by simulation runs the others.
            No rank holds more microbatches than the first one with ``'1f1b'``.
        lossfun: Function of the loss, ``lossfun(*outputs, *targets)``, on the last
            stage. It returns the mean over the samples; or this mean, and the number of
            samples that count.
        accfun: Function of the accuracy, as ``lossfun``; ``None`` for no accuracy.
        transport (str): ``'mpi'``; ``'rma'`` to put messages into memory that ranks of
            a host share; or ``'chainermn'`` for its blocking calls, to measure against.
            The last two are for stages in host memory.
        recompute (str or list): Microbatches that hold only their stage's input until
            they run forward again for their backward: ``'never'``, ``'except_last'`` or
            ``'always'``; see :mod:`divisible.schedules.recomputation`. Or positions of
            layers that do so, as those appended with ``recompute=True`` always do:
            ``[2, 3, (4, 6)]`` for layers 2 and 3 as one, and 4 and 5 as one. Other
            effects of a layer's forward then happen twice.
        seed (int): Seed of the layers' random numbers, and of weights drawn at their
            first call. Replicas number their microbatches together. Of the global
            generators, only NumPy's and CuPy's are seeded. A thread that draws from
            NumPy's during a step gets numbers of the layers.
        deferred_batch_norm (bool): Whether running averages of batch normalization move
            once per minibatch, rather than once per microbatch. Averages of
            ``DecorrelatedBatchNormalization`` always move per microbatch.
        message_dtype (str or pair of str): Dtype of floating-point arrays between the
            stages, or of activations and of gradients, such as ``('int8', 'bf16')``;
            not with ``'chainermn'``. See :doc:`/howto/message_dtypes`.
        timeout (float): Seconds to wait for another rank before giving up.
        loss_scale: Factor by which gradients are multiplied until the optimizer divides
            them: a number, or the ``loss_scale`` of a
            :class:`~mixed_precision.MixedPrecision`, read in every step. It must be
            equal on all ranks.
        hold_in (str or path): Place where this rank's microbatches wait for their
            backward: ``'memory'``; a directory, for a file in it; or ``'disk'``, for
            that of temporary files. See :mod:`pipeline.stages.held_elsewhere`.
            With a plan, a directory is the place of everything that the plan has on
            disk, weights included. The words ``'memory'`` and ``'disk'`` take
            precedence over the plan.
        hold_dtype (str): ``'bfloat16'`` to round float32 activations in host memory
            while they wait for their backward, which takes half of the memory: see
            :doc:`/howto/memory`; ``'float32'`` for their own dtype.
        fuse: Chains of pointwise layers, with a batch normalization or behind a
            product, that run as one function: ``'auto'`` for chains that are faster in
            the first minibatch, ``'none'``, or a plan's ``fusion``. Unless it is
            ``'none'``, :meth:`predict` and :meth:`evaluate` fold a batch normalization
            into the convolution or ``Linear`` directly before it, if both are in one
            stage. They do so within layers marked :func:`~chainer_kernels.fusible`,
            too. Folding rounds differently, so last bits may depend on the cuts.
        weight_groups (int or 'auto'): Number of microbatches whose weight gradients are
            one product, by default 1; see :mod:`divisible.schedules.groups`. Other
            groups round differently. ``'auto'`` times groups of 1, 2, 4 and so on in
            the first minibatches, as long as they are faster and fit into memory.
        overlap_minibatches (bool or 'auto'): Whether :meth:`step` returns while other
            ranks are still in the minibatch. Its result then waits for them when it is
            read. Parameters and results have the same bits. With ``'auto'`` it waits as
            the plan predicts, or if a feature needs the whole model. With ``True`` it
            corrects an update later, or refuses the feature:
            :mod:`pipeline.step.overlap`, :meth:`confirm_update`.
        plan (Plan, path or 'auto'): Cuts of the model and all other choices for a run:
            a plan, the path of its file, which rank 0 reads, or ``'auto'``. A plan with
            replicas makes a grid of ``comm``. With ``'auto'``, rank 0 measures the
            layers and chooses by :func:`~divisible.best_plan` among plans that use all
            ranks and keep the other arguments. If memory does not suffice, microbatches
            wait on disk, and so do weights of deferred layers. ``divisible run --plan
            FILE`` replaces ``'auto'`` by a file. See :doc:`/howto/cut`.
        x (array or tuple of arrays): Inputs of a first minibatch, for ``'auto'``; read
            on rank 0.
        t (array or tuple of arrays): Its targets, for ``'auto'``; read on rank 0.
        machine (Machine): Memory, speeds and links of the ranks, for ``'auto'``. By
            default the ranks measure them: the free memory, shared by the ranks of a
            host, and the times of a product and of messages. Memory of a GPU is not
            measured.
        directory: Directory for the file ``plan.json``, for ``'auto'``. A run that
            finds the file uses its plan, if it fits the model and the number of ranks.

    A model with float16 parameters gets its floating-point inputs in float16, and its
    outputs are cast to float32 for ``lossfun``. Gradients of microbatches are added up
    in float32 and rounded once.

    Attributes:
        rank (int): Number of this rank in the pipeline; on a grid, in its replica.
        is_first (bool): Whether this rank has the first stage, and reads ``x``.
        is_last (bool): Whether this rank has the last stage, and reads ``t``.
        grid (Grid or None): The grid that was given, or made for the plan.
        fusion (FusedLayers): Chains that run as one function; ``str()`` is a table.
        cuts (list of int): Cuts of the model, as in a :class:`~divisible.Plan`.
        memory (ModelMemory or None): Memory that ``print(pipe)`` shows, once it is set.

    Raises:
        DisagreementError: On every rank, if the stages of the ranks do not make up one
            model, arguments differ, or two stages share a layer with running averages.
            If a rank refuses its arguments, on the others.
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

    @names_keywords
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
        message_dtype: str | tuple[str, str] | None = None,
        timeout: float = TIMEOUT,
        recompute: str | Sequence[Any] | None = None,
        seed: int = 0,
        deferred_batch_norm: bool = True,
        loss_scale: Any = None,
        hold_in: str | os.PathLike | None = None,
        hold_dtype: str | None = None,
        fuse: str | Sequence[tuple[int, int]] | None = None,
        weight_groups: int | str | None = None,
        overlap_minibatches: bool | str = "auto",
        plan: Plan | str | os.PathLike | None = None,
        x: Any = None,
        t: Any = None,
        machine: Machine | None = None,
        directory: str | os.PathLike | None = None,
    ) -> None:
        # First of all, because other ranks may be waiting for one that fails here.
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
            hold_dtype=hold_dtype,
            fuse=fuse,
            weight_groups=weight_groups,
            overlap_minibatches=overlap_minibatches,
        )
        opening = open_plan(comm, arguments, PlanWish(plan, x, t, machine, directory))
        comm = opening.comm
        start = agree_on_start(comm, opening.arguments)
        self._loss, self._arguments = start.loss, start.arguments
        current = CurrentSchedule(start.arguments, start.stage_ranks, start.cuts)
        self.grid = comm if isinstance(comm, Grid) else None
        self._ranks = ranks = Ranks(comm, start.stage_ranks, timeout, start.name)
        self.rank, self._calls = ranks.rank, ranks.calls
        self.is_first = ranks.rank == ranks.first
        self.is_last = ranks.rank == ranks.last
        self.fusion = FusedLayers(start.arguments.stages, start.arguments.fuse)
        self._step = make_step(start, current, ranks)
        self._lay_out(start)
        begin_alike(ranks.grid, self.stages, timeout)
        self._device = start.arguments.stages[0].device
        self._keep_plan(opening, start)

    def _lay_out(self, start: Start) -> None:
        """Lays out the stages; other agreed arguments stay."""
        given = start._replace(arguments=self._arguments, loss=self._loss)
        self._step.lay_out(given)
        self.cuts = start.cuts

    def step(
        self,
        x: Any = None,
        t: Any = None,
        optimizer: Any = None,
        *,
        accumulate: bool = False,
    ) -> dict[str, float]:
        """Runs the forward and backward of one minibatch.

        After the call, every ``param.grad`` is the gradient of the minibatch's mean
        loss; with two weight versions, of the one before (:meth:`flush`). Update the
        parameters with ``optimizer.update()``; exchanged gradients come only then.

        Args:
            x (array or tuple of arrays): Inputs of the minibatch, with samples along
                the first axis; read on the first stage's rank only. Their dtype is that
                of the model's parameters, or an integer type; for float16 parameters,
                any floating-point type.
            t (array or tuple of arrays): Targets, with samples along the first axis;
                read on the last stage's rank only. ``None`` everywhere if ``lossfun``
                and ``accfun`` take only outputs.
            optimizer (chainer.Optimizer or list): Optimizers whose ``update()`` the
                script calls next. If no hook reads the gradient of a streamed layer,
                the layer may then be updated as its gradient is computed; the gradient
                is NaN afterwards. :class:`PipelineUpdater` gives its own optimizers.
            accumulate (bool): Whether gradients are added to those of the step before,
                as ``loss.backward()`` does without ``cleargrads``.

        Returns:
            dict: ``'loss'`` and, with an ``accfun``, ``'accuracy'``: means over the
            minibatch of all replicas, the same floats on every rank. If minibatches
            overlap, the dict waits for other ranks when a value is read. Also means
            over the samples of values that layers of any stage passed to
            :func:`chainer.report`; ``'/3/x'`` is what layer 3 reports as ``x``. Samples
            are counted along the first axis of a stage's first input. If a layer begins
            to report after the first minibatch, its first values are in the result of
            the next one.

        Raises:
            ValueError: If ``x`` or ``t`` is empty, a class label is negative, or
                ``accumulate`` does not go together with a feature.
            TypeError: If ``x`` or ``t`` is missing where it is read, or has a dtype
                that cannot be trained.
            DisagreementError: If the ranks make different calls, or loss scales differ.
                If ``x`` and ``t`` have different numbers of samples. If ``x`` has more
                samples than the states of the minibatch before.
            ActionError: If a layer or ``lossfun`` fails, or a class label is too large
                for the model's outputs.
            StallError: If another rank does not answer in time.
        """
        if self._own_grid is not None:
            self._check_set_up()
        before = begin_accumulating(self) if accumulate else None
        with self._call(ACCUMULATES if accumulate else "step"):
            result = self._step.train(x, t, optimizer, before)
        if self._step.current.trial is not None:
            self._step.current.note(self.timeline, self._ranks, self._step.runner)
        if self.fusion.is_open:
            self.fusion.choose(self._ranks)
        return result

    def evaluate(self, x: Any = None, t: Any = None) -> dict[str, float]:
        """Returns the loss and accuracy of one minibatch, without training.

        ``chainer.config.train`` is false meanwhile. Arguments, result and errors are
        those of :meth:`step`.
        """
        with self._call("evaluate"):
            reported, end = self._step.evaluate(x, t)
            return {**reported, **end.means()}

    def predict(self, x: Any = None, axis: int | Sequence[int] = 0) -> Any:
        """Returns the model's output for one minibatch.

        ``chainer.config.train`` is false meanwhile.

        Args:
            x (array or tuple of arrays): Inputs, as in :meth:`step`; an empty tuple for
                a replica without samples, if another replica has some.
            axis (int or tuple of ints): Axis of the samples in the outputs, for all
                outputs or for each; read on the last stage's rank.

        Returns:
            array or tuple of arrays: Outputs of the last layer, on every rank. A
            replica without samples gets arrays without samples.

        Raises:
            ValueError: On every rank, if the outputs do not have the samples along this
                axis, or no replica has samples.
        """
        with self._call("predict"):
            outputs = self._step.predict(x, axis).read()
            return outputs[0] if len(outputs) == 1 else outputs

    @contextmanager
    def _call(self, name: str, goes_on: bool = False) -> Iterator[None]:
        """Returns the context of a call, which refuses it after a failed one.

        The stages' device is the current one in it; a script may use another one. A
        call that ``goes_on`` with others leaves their numbers under way.
        """
        if name != "step" and not goes_on:
            self._step.settle()
        with self._calls.made(name):
            try:
                with chainer.using_device(self._device):
                    yield
            except BaseException as error:
                if name.startswith("step") and isinstance(error, _OF_RANKS):
                    error.args = (f"{error} (in step {self.n_steps + 1})",)
                if self._ranks.world.size > 1:
                    # MPI may still write into the arrays of posted receives.
                    never_free(self)
                raise
