"""The parts of a step, made for the layers that a rank has now.

They are made at the start, and once more when layers have moved to other ranks::

    start ---> stages --> runner, over a transport
                 |------> ties          parameters that several stages share
                 '------> updates       compares how optimizers treat them
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import chainer

from chainer_kernels.prepared_weights import scope_for
from divisible.communication import late_numbers
from divisible.schedules.rank_program import Record
from pipeline.calls.call_agreement import ACCUMULATES, CALLS, CallAgreement
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.hooks.update_agreement import UpdateAgreement
from pipeline.stages.reports import PendingReports
from pipeline.stages.stage import Stage
from pipeline.start.agreement import Start
from pipeline.step.carried_counts import CarriedCounts
from pipeline.step.confirming import Confirming
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.cutting import Cutting
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.early_updates import EarlyUpdates
from pipeline.step.making import make_runner, make_stages, make_ties, make_updates
from pipeline.step.message_shapes import MessageShapes
from pipeline.step.overlap import Overlap
from pipeline.step.runner import Runner
from pipeline.step.step_end import StepEnd

# The layouts of all pipelines of this process, which may have the same layers.
_living: weakref.WeakSet[Layout] = weakref.WeakSet()
# A loss scale that is too large is noticed by the infinities that it causes.
_QUIET = {"over": "ignore", "invalid": "ignore"}


class Layout:
    """The stages of a rank, and all else that its steps need.

    :class:`.Step` uses it. All ranks must call these methods.

    Args:
        start (Start): Arguments of all ranks, as agreed at the start.
        current (CurrentSchedule): The first schedule.
        ranks (Ranks): All ranks of the pipeline.

    Attributes:
        start (Start): Arguments of all ranks, with the present layers.
        current (CurrentSchedule): The schedule that runs now.
        stages (dict of Stage): Stages of this rank, by number.
        runner (Runner): Runs schedules.
        ties (TieExchange or None): Exchange of shared parameters, if there are some.
        updates (UpdateAgreement): Compares how the ranks' optimizers treat the model.
        early_exchanges (EarlyExchanges): Exchanges of gradients while a step computes.
        vetoes (WeakSet): Objects that may refuse to train, by a text ``refusal``.
        record (Record or None): Times of the last training minibatch on this rank.
        n_steps (int): Number of minibatches that have been trained on.
        end (StepEnd or None): The end of the last call with a loss.
        overlap (Overlap): Whether steps return before other ranks have ended theirs.
        confirming (Confirming or None): Confirms updates after they have been made;
            ``None`` if they wait.
        message_shapes (MessageShapes): Shapes of messages, from the first step on.
    """

    runner: Runner
    message_shapes = MessageShapes()
    ties: TieExchange | None
    updates: UpdateAgreement | None = None
    make_stage: type[Stage] = Stage

    def __init__(self, start: Start, current: CurrentSchedule, ranks: Ranks) -> None:
        given = start.arguments
        self.start, self._ranks, self._loss = start, ranks, start.loss
        self._loss_scale, self._device = given.loss_scale, given.stages[0].device
        self._float_errors = {} if given.loss_scale is None else _QUIET
        self._cutting = Cutting(start, ranks)
        self._is_first = ranks.rank == ranks.first
        self._is_last = ranks.rank == ranks.last
        self.current = current
        self.early_exchanges = EarlyExchanges(ranks)
        self._early_updates: EarlyUpdates | None = None
        self.vetoes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reports = {call: PendingReports() for call in CALLS}
        self._reports[ACCUMULATES] = self._reports["step"]
        self._carried = CarriedCounts(ranks.n_replicas)
        self.overlap = Overlap(given.overlap_minibatches)
        self.confirming: Confirming | None = None
        if given.overlap_minibatches is True and ranks.size > 1:
            self.confirming = Confirming(self.overlap, given, ranks)
        self.record: Record | None = None
        self.n_steps = 0
        self.end: StepEnd | None = None
        # The end of a step that still runs, whose means are on their way already.
        self._early_end: StepEnd | None = None
        self.stages: dict[int, Stage] = {}
        self._stage_list: list[Stage] = []
        _living.add(self)

    def lay_out(self, start: Start) -> None:
        """Makes stages, exchanges and runner for the layers.

        Hooks of optimizers that are known stay known.

        Args:
            start (Start): Agreed arguments, with the layers that this rank has now.
        """
        ranks, hooks, self.start = self._ranks, None, start
        self.overlap.check(start, ranks.n_replicas)
        # Whether gradients need a count that is known when all losses are computed.
        self._counts_late = not start.knows_count and not self.overlap.feature
        self.stages = make_stages(start, ranks, self.make_stage)
        if self.updates is not None:
            hooks = self.updates.hooks
            self.close()
            hooks.forget_layers()
        self._stage_list = [*self.stages.values()]
        layers = [stage.layers for stage in self._stage_list]
        params = [param for part in layers for param in part.params()]
        ranks.calls.streamed = [p for p in params if getattr(p, "is_streamed", False)]
        ranks.calls.carriers = layers[0].carried_states
        # Returns the context in which nobody changes the weights.
        self._unchanged_weights = scope_for(params)
        self.ties = make_ties(start, self.stages, ranks)
        self.updates = make_updates(start, self.stages, ranks, hooks)
        if self.confirming is not None:
            self.updates.hooks.late = self.confirming.late
        self.runner = make_runner(start, self.stages, ranks)
        # Whether a step has been compared, and its messages been found, since then.
        self._has_begun = False
        self.current.prepare(self.runner)
        self._early_updates = EarlyUpdates.of(self._stage_list, self.ties, ranks)

    @property
    def calls(self) -> CallAgreement:
        """The calls of the pipeline."""
        return self._ranks.calls

    def others(self) -> Iterator[Layout]:
        """Yields the layouts of other pipelines of this process that are not closed."""
        for each in [*_living]:
            if each is not self and not each._ranks.are_closed:
                yield each

    @property
    def are_unsized(self) -> bool:
        """Whether a layer gets its size at its first call, which is still to come."""
        return any(stage.uncalled.are_unsized for stage in self._stage_list)

    def settle(self) -> None:
        """Ends what the last step has left under way."""
        if late_numbers.under_way:
            late_numbers.read_all(self._ranks.calls)
        if self.confirming is not None:
            self.confirming.late.settle()

    def reset_states(self, of_training: bool = True) -> None:
        """Drops the states of layers, also those of training if wanted."""
        for stage in self._stage_list:
            stage.carried.reset(of_training)
        if of_training:
            self._carried.reset()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the number of steps, and the counts of states."""
        self.n_steps = int(serializer("n_steps", self.n_steps))
        if isinstance(serializer, chainer.Deserializer):
            # A snapshot of layers without sizes takes them away.
            for stage in self._stage_list:
                stage.uncalled.await_all()
        if self._carried.are_known or isinstance(serializer, chainer.Deserializer):
            self._carried.serialize(serializer)

    def close(self) -> None:
        """Frees the communicators and buffers of messages."""
        if self.confirming is not None:
            # Optimizers may go on without the pipeline.
            self.confirming.late.want(False)
        self.runner.close()
        if self.ties is not None:
            self.ties.close()
        self.updates.close()
