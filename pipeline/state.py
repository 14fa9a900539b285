"""The state of a pipeline: its stages, its plan, its numbers, and their description."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import chainer

from data_parallel import Grid
from divisible import Divisible, ModelMemory, Plan
from divisible.planning.message_plan import as_plans
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import stage_group_sizes
from pipeline.calls.ranks import Ranks
from pipeline.internals import Internals
from pipeline.start.agreement import Start
from pipeline.start.description import Description, describe, ranks_of_stages
from pipeline.start.opening import Opening
from pipeline.start.plans import plan_of_stages, with_new_cuts
from pipeline.step.fused_layers import FusedLayers
from pipeline.step.message_shapes import MessageShapes
from pipeline.step.step import Step


class PipelineState:
    """The properties of a pipeline, which need no call of all ranks.

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

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the number of steps, and the fused layers."""
        self._step.serialize(serializer)
        if self.fusion.chains or isinstance(serializer, chainer.Deserializer):
            self.fusion.serialize(serializer)

    def __str__(self) -> str:
        """Returns the stages as a table, and how they run."""
        return str(self._describe())

    def _repr_html_(self) -> str:
        return self._describe().to_html()

    def _describe(self) -> Description:
        confirming = self._step.confirming
        return describe(
            self.plan,
            self.cuts,
            self.schedule,
            next(iter(self.stages.values())).model_layers,
            ranks_of_stages(self._ranks.grid, self.schedule.stage_ranks),
            self._changes,
            self._step.overlap.feature,
            "" if confirming is None else str(confirming.late),
            self.message_shapes.varying,
            self.memory,
        )
