"""The plan: the cuts of a model, and how its stages are run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from divisible.files import write_json
from divisible.notebook_html import Part, Rows, as_html, as_text
from divisible.placement import cheaper_placement
from divisible.planning import plan_fields as fields
from divisible.planning.conditions import Conditions
from divisible.planning.expected_costs import ExchangePlan, StagePlan
from divisible.planning.message_plan import MessagePlan, message_lines
from divisible.planning.plan_texts import gains_of, headline_of, title_of
from divisible.planning.plan_traffic import traffic_of
from divisible.planning.profile import check_layers
from divisible.planning.retained_arrays import FULL
from divisible.planning.tables import PLAN_COLUMNS, plan_rows
from divisible.planning.units import count
from divisible.records import (
    from_fields,
    plain_text,
    reading_json,
)
from divisible.schedules.catalogue import create
from divisible.schedules.recomputation import check_recomputation

if TYPE_CHECKING:
    from divisible.model import Divisible


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A way to run a model that :func:`divisible.best_plan` did not choose.

    Attributes:
        name: Description of the plan.
        seconds: Seconds of the predicted step; a lower bound if the plan lost before it
            was simulated; infinity if it does not fit.
        reason: Reason why the plan lost.
        plan: The plan, if there is one that fits.
    """

    name: str
    seconds: float
    reason: str
    plan: Plan | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cuts of a model into stages, and how the stages are run.

    Only the cuts are needed. :func:`divisible.partition` adds the expected costs of
    each stage, and :func:`divisible.best_plan` how to run them. Printed, a plan is a
    table.

    Args:
        cuts: Positions in the model: stage ``i`` has the layers ``cuts[i]`` to
            ``cuts[i + 1] - 1``. Starts with 0, grows, and ends with the number of
            layers.
        n_microbatches: Number of microbatches of a minibatch.
        schedule: Name of the schedule, for :class:`pipeline.Pipeline`.
        recompute: Microbatches that run forward again before their backward:
            ``'never'``, ``'except_last'`` or ``'always'``.
        recomputed: Runs of layers that run forward again in their backward. A
            microbatch holds only their inputs. Each run has its first position and the
            one after its last (`divisible.planning.recomputed_layers`).
        replicas: Number of pipelines that share a minibatch.
        stages_per_rank: Number of stages on each rank.
        layers: A text for each layer of the model, by which it is recognized.
        stages: Expected costs of each stage.
        step_seconds: Predicted seconds of a minibatch, forward and backward.
        bubble: Predicted share of ``step_seconds`` that a rank waits, mean of the
            ranks.
        scatter: How far the timings behind these predictions lie from their medians, as
            a part of them (:class:`~divisible.Profile`).
        bound: Seconds that no order of the same actions on the same ranks goes below
            (`divisible.schedules.lower_bound`).
        alternatives: Plans that :func:`divisible.best_plan` did not choose, best first;
            not saved.
        exchange_dtype: The dtype in which replicas exchange gradients, for
            ``data_parallel.create_multi_node_optimizer``.
        error_feedback: Whether replicas keep the losses of encodings.
        exchange: Expected costs of the exchange.
        shares: Ratio in which minibatches are divided, a number for each replica;
            ``None`` for equal parts.
        fusion: The chains of layers that run as one function, each by its first
            position and the one after its last. They are the result of
            ``Pipeline(fuse='auto').fusion``, for ``Pipeline(fuse=plan.fusion)``.
        hold_in: Where the microbatches of each rank of a pipeline wait for their
            backward, ``'memory'`` or ``'disk'``, for ``Pipeline(hold_in=)``.
        hold_dtype: Dtype in which activations of float32 wait there, ``'float32'`` or
            ``'bfloat16'``, for ``Pipeline(hold_dtype=)``.
        streamed: Positions of layers whose weights are on disk, for
            ``divisible.streaming.stream(model, plan=plan)``.
        weight_groups: Number of microbatches whose weight gradients are one product.
        stage_groups: Number of microbatches that each stage takes as one; none for 1.
        messages: The dtypes of messages over each edge between neighbouring stages,
            with the reason; none to narrow no message.
        conditions: The machine, the samples and the profiles that the plan was made
            for, which predictions from the plan use; ``None`` if they are not known.

    Raises:
        ValueError: If ``cuts`` is not of this form, the lengths of ``layers`` or
            ``stages`` differ from those of the cuts, or another argument is out of
            range.
        TypeError: If a cut is not an integer, ``step_seconds``, ``bubble``, ``scatter``
            or ``bound`` is not a number, or ``conditions`` are not conditions.

    Example:
        >>> plan = Plan([0, 3, 5])
        >>> plan.n_stages, plan.range(1)
        (2, (3, 5))
    """

    cuts: Sequence[int]
    n_microbatches: int | None = None
    schedule: str | None = None
    recompute: str = "never"
    replicas: int = 1
    stages_per_rank: int = 1
    layers: Sequence[str] | None = dataclasses.field(default=None, repr=False)
    stages: Sequence[StagePlan] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    step_seconds: float | None = dataclasses.field(default=None, compare=False)
    bubble: float | None = dataclasses.field(default=None, compare=False)
    alternatives: Sequence[Alternative] = dataclasses.field(
        default=(), repr=False, compare=False
    )
    exchange_dtype: str | None = None
    error_feedback: bool = False
    exchange: ExchangePlan | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    shares: Sequence[float] | None = None
    fusion: Sequence[tuple[int, int]] = ()
    hold_in: Sequence[str] = ()
    hold_dtype: str = FULL
    streamed: Sequence[int] = ()
    recomputed: Sequence[tuple[int, int]] = ()
    weight_groups: int = 1
    stage_groups: Sequence[int] = ()
    messages: Sequence[MessagePlan] = ()
    scatter: float | None = dataclasses.field(default=None, compare=False)
    bound: float | None = dataclasses.field(default=None, compare=False)
    conditions: Conditions | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        cuts = fields.positions_of_cuts(self.cuts)
        self._set(cuts=cuts)
        for name in ("n_microbatches", "replicas", "stages_per_rank", "weight_groups"):
            value = getattr(self, name)
            if value is not None or name != "n_microbatches":
                self._set(**{name: fields.positive_count(name, value)})
        if self.schedule is not None:
            plain_text("schedule", self.schedule)
        for name in ("step_seconds", "bubble", "scatter", "bound"):
            self._set(**{name: fields.optional_number(name, getattr(self, name))})
        if self.n_stages % self.stages_per_rank:
            raise ValueError(
                f"cuts {self.cuts} make {count(self.n_stages, 'stage')}, which do not"
                f" lie {self.stages_per_rank} on each rank"
            )
        check_recomputation("recompute", self.recompute)
        fields.check_hold_dtype("hold_dtype", self.hold_dtype)
        fields.check_exchange(self.exchange_dtype, self.error_feedback)
        fields.check_conditions(self.conditions)
        self._set(
            shares=fields.replica_shares(self.shares, self.replicas),
            fusion=fields.chains("fusion", self.fusion, cuts[-1]),
            hold_in=fields.places(self.hold_in, self.n_stages // self.stages_per_rank),
            streamed=fields.positions(self.streamed, cuts[-1]),
            recomputed=fields.runs("recomputed", self.recomputed, cuts[-1]),
            stage_groups=fields.sizes_of_groups(self.stage_groups, self.n_stages),
            messages=fields.message_plans(self.messages, self.n_stages),
            layers=fields.descriptions("layers", self.layers, cuts[-1], cuts),
            stages=fields.descriptions("stages", self.stages, len(cuts) - 1, cuts),
        )

    def _set(self, **values: Any) -> None:
        """Replaces the given values by plain ones, the only ones that JSON has."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def uniform(cls, n_layers: int, n_stages: int) -> Plan:
        """Cuts into stages of equally many layers, as the paper does (section 7).

        Args:
            n_layers (int): Number of layers in the model.
            n_stages (int): Number of stages. If it does not divide ``n_layers``,
                the first stages get one layer more.

        Raises:
            ValueError: If there are more stages than layers.

        Example:
            >>> Plan.uniform(5, 2).cuts
            [0, 3, 5]
        """
        if not 1 <= n_stages <= n_layers:
            raise ValueError(
                f"{n_layers} layers cannot be cut into {n_stages} stages: each stage"
                f" needs at least one layer. Use between 1 and {n_layers} stages; there"
                f" is one on each rank, or as many as the schedule says."
            )
        each, extra = divmod(n_layers, n_stages)
        return cls([i * each + min(i, extra) for i in range(n_stages + 1)])

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return len(self.cuts) - 1

    @property
    def n_layers(self) -> int:
        """The number of layers of the model."""
        return self.cuts[-1]

    @property
    def batch(self) -> int | None:
        """The samples of the plan's minibatch; ``None`` if not known."""
        if self.conditions is None:
            return None
        return self.conditions.minibatch(self.n_microbatches)

    def range(self, stage: int) -> tuple[int, int]:
        """Returns ``(start, end)`` of a stage, for :meth:`Divisible.divide`.

        Stage ``s`` is on rank ``s`` if there is one on each (``stages_per_rank``) and
        one replica; else :meth:`divisible.schedules.Schedule.rank_stages` returns the
        stages of a rank of a replica.

        Raises:
            IndexError: If there is no such stage.
        """
        if not 0 <= stage < self.n_stages:
            raise IndexError(
                f"no stage {stage} in the plan {self.cuts}: it has"
                f" {count(self.n_stages, 'stage')}, {self.stages_per_rank} on each"
                f" rank, and is for {count(self.n_ranks, 'rank')}"
            )
        return self.cuts[stage], self.cuts[stage + 1]

    def check(self, model: Divisible, n_ranks: int | None = None) -> None:
        """Checks that this is a plan for a model and a number of ranks.

        Args:
            model: The model, or a stage of it.
            n_ranks: The number of ranks, ``comm.size``.

        Raises:
            ValueError: If the plan is for another model or number; the message says
                what differs.
        """
        n = len(model.model_layers)
        if self.layers is not None:
            name, layers = type(model).__name__, model.model_layers
            check_layers("the plan", self.layers, name, layers)
        elif n != self.n_layers:
            raise ValueError(
                f"the plan {self.cuts} is for a model of {self.n_layers} layers, but"
                f" {type(model).__name__} has {n}"
            )
        if n_ranks is not None and n_ranks != self.n_ranks:
            raise ValueError(
                f"the plan {self.cuts} is for {self.n_ranks} ranks, but there are"
                f" {n_ranks}: start {self.n_ranks} ranks, or make another plan"
            )

    @property
    def gap(self) -> float | None:
        """The part by which the predicted step is above ``bound``: 0.02 for 2 %."""
        if not self.bound or self.step_seconds is None:
            return None
        return self.step_seconds / self.bound - 1

    @property
    def n_ranks(self) -> int:
        """The number of ranks that the plan needs."""
        return self.n_stages // self.stages_per_rank * self.replicas

    def placement(self, hosts: Sequence[Hashable]) -> str:
        """Returns how to place the ranks on hosts, so that least goes between hosts.

        The result depends on whether activations or gradients are larger;
        `divisible.placement` describes the calculation.

        Args:
            hosts: Name or number of the host of each rank of the world.

        Returns:
            str: ``'stages_together'`` or ``'replicas_together'``, as for
            ``data_parallel.Grid``.

        Raises:
            ValueError: If the number of hosts is not that of the ranks, or the plan
                does not have the bytes that stages send.

        Example:
            >>> stage = StagePlan(1.0, 0.0, 0, output_bytes=100, n_gradients=10)
            >>> plan = Plan([0, 1, 2], 8, '1f1b', replicas=2, stages=[stage, stage])
            >>> plan.placement(['a', 'a', 'b', 'b'])
            'stages_together'
        """
        if len(hosts) != self.n_ranks:
            raise ValueError(
                f"the plan {self.cuts} is for {self.n_ranks} ranks, but hosts has"
                f" {len(hosts)}"
            )
        stages, m = self.stages, self.n_microbatches
        if stages is None or m is None or not any(s.n_gradients for s in stages):
            raise ValueError(
                f"the plan {self.cuts} does not say what its stages send: make it with"
                f" best_plan, or choose a placement"
            )
        ranks: Sequence[int] = range(self.n_stages)
        if self.stages_per_rank > 1:
            n_ranks = self.n_ranks // self.replicas
            ranks = create(self.schedule, self.n_stages, m, n_ranks).stage_ranks
        traffic = traffic_of(stages, ranks, m, self.exchange_dtype or "fp32")
        return cheaper_placement(traffic, hosts)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan as JSON; the file appears only when it is complete."""
        plain = dataclasses.replace(self, alternatives=(), conditions=None)
        content = {"divisible": "plan", **dataclasses.asdict(plain)}
        del content["alternatives"]
        if self.conditions is not None:
            content["conditions"] = self.conditions.to_json(_folder(path))
        write_json(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Plan:
        """Reads a plan written by :meth:`save`; a file with ``cuts`` alone will do.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file holds something else; the message names the field.
        """
        with reading_json(path, "a plan") as content:
            return from_fields(cls, fields.from_json(content, _folder(path)))

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        """Returns the plan as a notebook shows it."""
        return as_html(self._parts())

    def _parts(self) -> Iterator[Part]:
        yield self.headline
        if self.certainty:
            yield self.certainty
        if self.exchange is not None:
            yield f"exchange of gradients: {self.exchange}"
        yield from message_lines(self.messages)
        if self.stages is not None:
            yield Rows([PLAN_COLUMNS, *plan_rows(self.cuts, self.stages)])
            yield from gains_of(self)
        if self.conditions is not None:
            yield f"for {self.conditions}"

    @property
    def certainty(self) -> str:
        """A line of text about plans that are as good, or an empty one."""
        if self.scatter is None:
            return ""
        return (
            f"the timings of the layers scattered by {self.scatter:.1%}: plans within"
            f" that are as good"
        )

    @property
    def title(self) -> str:
        """A short text of the plan, for a picture: schedule, microbatches, cuts."""
        return title_of(self)

    @property
    def headline(self) -> str:
        """The plan in a line of text."""
        return headline_of(self)


def _folder(path: str | os.PathLike) -> str:
    """Returns the folder of a file."""
    return os.path.dirname(os.fspath(path)) or os.curdir
