"""A pipeline between the passes of minibatches: its plan, its optimizers, its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from data_parallel import Grid
from divisible import Divisible, ModelMemory, Plan
from divisible.planning.message_plan import as_plans
from divisible.schedules.events import CATEGORIES, UPDATE
from divisible.schedules.rank_program import Span
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import stage_group_sizes
from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.calls.replicas import part_of
from pipeline.hooks.setting_up import set_up
from pipeline.internals import Internals
from pipeline.start.agreement import Start
from pipeline.start.description import Description, describe, ranks_of_stages
from pipeline.start.opening import Opening
from pipeline.start.plans import plan_of_stages, with_new_cuts
from pipeline.step.fused_layers import FusedLayers
from pipeline.step.message_shapes import MessageShapes
from pipeline.step.step import Step

_Own = TypeVar("_Own", bound="BetweenSteps")


class BetweenSteps:
    """The properties and calls of a pipeline that run no minibatch.

    Attributes:
        cuts (list of int): Cuts of the model.
        fusion (FusedLayers): The chains that run as one function.
        memory (ModelMemory or None): Memory that ``print(pipe)`` shows, where it was
            set: the result of :func:`~divisible.trace_memory` for a microbatch.
    """

    cuts: Sequence[int]
    fusion: FusedLayers
    memory: ModelMemory | None = None
    _ranks: Ranks
    _step: Step
    _own_grid: Grid | None = None
    _plan: Plan | None = None
    _changes: Sequence[str] = ()

    @property
    def internals(self) -> Internals:
        """The parts that packages of this project use; they change without notice."""
        return Internals(self)

    @property
    def is_chief(self) -> bool:
        """Whether this rank prints and writes logs for all ranks."""
        return self._ranks.is_chief

    @property
    def n_replicas(self) -> int:
        """Number of pipelines that share a minibatch."""
        return self._ranks.n_replicas

    @property
    def replica(self) -> int:
        """Number of this rank's pipeline among the replicas."""
        return self._ranks.replica

    def _call(self, name: str, goes_on: bool = False) -> AbstractContextManager[None]:
        """Returns the context of a call."""
        raise NotImplementedError

    @property
    def stages(self) -> dict[int, Divisible]:
        """This rank's stages, by their number in the pipeline."""
        return {number: stage.layers for number, stage in self._step.stages.items()}

    @property
    def schedule(self) -> Schedule:
        """The schedule that :meth:`step` runs; ``'auto'`` may change it once."""
        return self._step.current.schedule

    def _keep_plan(self, opening: Opening, start: Start) -> None:
        """Keeps the plan, or the plan that describes the given stages.

        Args:
            opening: The plan and the arguments that the pipeline was opened with.
            start: The outcome of the agreement of all ranks.
        """
        grid = self._ranks.grid
        self._own_grid, self._changes = opening.grid, opening.changes
        self._plan = opening.plan or plan_of_stages(
            start.cuts,
            start.stage_ranks,
            n_microbatches=start.arguments.n_microbatches,
            recompute=start.arguments.recompute,
            recomputed=start.arguments.recomputed,
            weight_groups=self._step.current.weight_groups,
            stage_groups=stage_group_sizes(self.schedule),
            replicas=self._ranks.n_replicas,
            shares=grid and grid.shares,
            hold_in=start.hold_in,
            hold_dtype=start.arguments.hold_dtype,
            streamed=start.streamed,
            messages=as_plans(start.arguments.dtypes_over(len(start.cuts) - 2)),
        )

    @property
    def plan(self) -> Plan | None:
        """The plan in force, in which given arguments have replaced its own.

        It has no predictions if it differs from the original plan. ``None`` if ranks
        have unequally many stages, which no plan describes.
        """
        if self._plan is None:
            return None
        return dataclasses.replace(
            with_new_cuts(self._plan, self.cuts),
            schedule=self.schedule.name,
            fusion=self.fusion.chains or self._plan.fusion,
            weight_groups=self._step.current.weight_groups,
        )

    @property
    def message_shapes(self) -> MessageShapes:
        """Shapes of the messages between stages, as the first step has found them.

        ``str()`` returns a table. ``message_shapes.varying`` has the channels whose
        shapes depend on more than the number of samples, each with the reason.
        """
        return self._step.message_shapes

    @property
    def shares_minibatches(self) -> bool:
        """Whether replicas share the minibatches that iterators and scripts provide.

        True if the plan has replicas, and the pipeline was given a communicator.
        """
        return self._own_grid is not None

    @property
    def n_steps(self) -> int:
        """Number of minibatches that :meth:`step` has run."""
        return self._step.n_steps

    @property
    def n_counted(self) -> dict[str, float]:
        """Number of samples of all replicas in the last loss and accuracy, by name."""
        return {} if self._step.end is None else self._step.end.n_counted

    @property
    def n_samples(self) -> int | None:
        """Number of this replica's samples in the last gradients.

        ``None`` if no replica had samples. Optimizers that exchange gradients need it.
        """
        return None if self._step.end is None else self._step.end.n_samples

    def setup(self, optimizer: Any) -> Any:
        """Sets up an optimizer for all stages of this rank; all ranks must call it.

        Its hooks treat the whole model, as after :meth:`global_hooks`. With replicas,
        :func:`~data_parallel.create_multi_node_optimizer` wraps it, and gradients are
        exchanged in the plan's dtype.

        Args:
            optimizer (chainer.Optimizer): An optimizer of Chainer, not set up; or a
                :class:`~mixed_precision.MixedPrecision` with the ``comm`` of all ranks,
                whose ``loss_scale`` the pipeline was given. An optimizer that was set
                up with the chain of these layers (:func:`~divisible.from_chain`) keeps
                its hooks, and parameters stay frozen.

        Returns:
            chainer.Optimizer: The optimizer for :class:`PipelineUpdater`,
            :func:`snapshot` and :class:`Rebalance`. It does not update parameters of a
            loss.

        Raises:
            TypeError: If ``optimizer`` is not an optimizer.
            ValueError: If it has hooks already. Add hooks after this call.
            DisagreementError: With replicas, if another rank refuses.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
            >>> optimizer = pipe.setup(chainer.optimizers.Adam())
        """
        stages, grid = list(self.stages.values()), self._ranks.grid
        optimizer = set_up(optimizer, stages, grid, self)
        self._step.updates.hooks.add(optimizer)
        return optimizer

    def my_part(self, *arrays: Any) -> Any:
        """Returns this replica's part of a minibatch; without replicas, all of it.

        Args:
            *arrays: The whole minibatch: arrays, tuples of arrays, or ``None``.

        Returns:
            tuple: The part of each argument; for a single argument, the part itself.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
            >>> x, t = pipe.my_part([[1, 2]], [0])
        """
        parts = tuple(part_of(self._ranks.grid, each) for each in arrays)
        return parts[0] if len(parts) == 1 else parts

    def flush(self) -> bool:
        """Ends the last minibatch, where gradients come one step late.

        All ranks must call it. With a schedule of two weight versions, such as
        ``'pipedream_2bw'``, the last gradient of a run waits for another step. After
        this call ``param.grad`` has it, and ``optimizer.update()`` applies it. The next
        step is then like the first one. With other schedules nothing is done.

        Returns:
            bool: Whether there is a gradient to apply. It is the same on all ranks.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time.

        Example:
            >>> import chainer
            >>> import numpy as np
            >>> from mpi4py import MPI
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(
            ...     stage, MPI.COMM_SELF, n_microbatches=2, schedule='pipedream_2bw')
            >>> optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
            >>> x, t = np.ones((2, 4), np.float32), np.zeros(2, np.int32)
            >>> for _ in range(3):
            ...     result = pipe.step(x, t)
            ...     optimizer.update()      # of the minibatch before; first of none
            >>> if pipe.flush():
            ...     optimizer.update()      # of the last minibatch
        """
        if self.schedule.weight_versions == 1:
            return False
        with self._call("flush"):
            self._ranks.calls.compare()
            return self._step.flush()

    def reset_states(self) -> None:
        """Drops states of :func:`~divisible.carry_state`; all ranks must call it."""
        with self._call("reset"):
            self._ranks.calls.compare()
            self._step.reset_states()

    def _check_set_up(self) -> None:
        """Refuses a step whose gradients would not be averaged."""
        if not self._step.vetoes:
            raise RuntimeError(
                f"the plan has {self._ranks.n_replicas} replicas, but nothing averages"
                f" their gradients: call optimizer = pipe.setup(optimizer)"
            )

    def confirm_update(self) -> None:
        """Waits until the last update of the optimizers is the right one.

        With ``overlap_minibatches=True``, an update that is clipped by the norm of all
        gradients, or has a loss scale, may be corrected in the next :meth:`step`. Call
        this before the script reads or changes parameters between the two, or states of
        optimizers. Calls of all ranks, such as ``evaluate``, :func:`snapshot` and
        ``close``, do it themselves. Ranks need not call it together.

        Raises:
            FloatingPointError: If gradients were not finite, and no smaller loss scale
                is left to try.
            StallError: If another rank does not update in time.

        Example:
            >>> import chainer
            >>> from mpi4py import MPI
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
            >>> pipe.confirm_update()
        """
        if (confirming := self._step.confirming) is not None:
            confirming.late.finish()

    @contextmanager
    def recorded_update(self) -> Iterator[None]:
        """Returns a context that puts an optimizer's update on the timeline.

        The update belongs to the last :meth:`step`. :class:`PipelineUpdater` records
        its updates itself. An exchange of gradients in ``update`` that is on the
        timeline, too, is not part of the update, which begins behind it.

        Example:
            >>> import chainer
            >>> import numpy as np
            >>> from mpi4py import MPI
            >>> from pipeline import Pipeline
            >>> stage = Divisible(chainer.links.Linear(4, 3))
            >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
            >>> optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
            >>> result = pipe.step(np.ones((2, 4), np.float32), np.zeros(2, np.int32))
            >>> with pipe.recorded_update():
            ...     optimizer.update()
            >>> [str(event.what) for event in pipe.timeline()]
            ['0F0', '0B0', 'update']
        """
        start, what = time.perf_counter(), CATEGORIES[UPDATE]
        yield
        self.internals.record_after(Span(what, start, time.perf_counter(), what))

    def timeline(self) -> Timeline:
        """Returns the times of every rank's actions in the last :meth:`step`.

        Recording is always on, and reads the clock twice per action or message. All
        ranks must call this. On a GPU, the times are those of launches.

        Returns:
            Timeline: The timeline of all ranks of the pipeline, the same on each of
            them, on one clock that starts with the first action. A wait is a receive,
            from when it was needed to when it was complete. Updates in
            :meth:`recorded_update` follow. On a grid, it is the timeline of this
            replica, with the exchanges so far.

        Raises:
            RuntimeError: If no step has been run yet.
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time.
        """
        if (record := self._step.record) is None:
            raise RuntimeError(
                "no step has been run yet: call step() before timeline()"
            )
        with self._call("timeline"):
            self._ranks.calls.compare()
            return self._ranks.timeline(
                record, self._step.early_exchanges.spans(record)
            )

    def close(self) -> None:
        """Frees the pipeline's communicator, and the grid that it has made, if any.

        All ranks must call this. It is needed only if many pipelines are made in one
        process. A pipeline is a context manager that closes itself. After a failed
        call, or if the pipeline is closed already, nothing is done.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time, or its script has
                ended.
            SnapshotError: If a snapshot in the background has failed; call it again.
        """
        # A failed call may have messages under way, whose buffers must stay.
        if self._ranks.calls.has_failed or self._ranks.are_closed:
            return
        for end in self._ranks.before_close.values():
            end()
        # If one rank closed alone, it could not answer others that wait for it.
        with self._call("close"):
            self._ranks.calls.compare()
        self._step.close()
        self._ranks.close()
        if self._own_grid is not None:
            self._own_grid.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error, the other ranks do not close with this one.
        if error is None:
            self.close()

    def __str__(self) -> str:
        """Returns the stages as a table, and how they run."""
        return str(self._describe())

    def _repr_html_(self) -> str:
        return self._describe().to_html()

    def _describe(self) -> Description:
        ranks = ranks_of_stages(self._ranks.grid, self.schedule.stage_ranks)
        layers = next(iter(self.stages.values())).model_layers
        plan, changes = self.plan, self._changes
        waits_for, confirming = self._step.overlap.feature, self._step.confirming
        confirmed = "" if confirming is None else str(confirming.late)
        place = plan, self.cuts, self.schedule, layers, ranks, changes
        varying = self.message_shapes.varying
        return describe(*place, waits_for, confirmed, varying, self.memory)
