"""A step: a minibatch on its way through a pipeline.

::

    early updates begin
                  x and t are cut; the ranks begin to compare the call
    early exchanges begin
                  the stages begin, and the runner runs this rank's program
    gradients are checked
                  the comparison of the call has ended; the ranks begin to send means
    early exchanges end; gradients are corrected; early updates end

A step does not touch features that the run does not use. An attribute asks for each,
and its work is in a module of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import chainer
import numpy as np

from chainer_kernels.prepared_weights import scope_for
from divisible.backward.tensors import copied
from divisible.communication import late_numbers
from divisible.communication.signatures import Tensors
from divisible.communication.tags import RESULT_TAG
from divisible.minibatch import split_unequally
from divisible.random_streams import restored_random_state
from divisible.schedules.rank_program import RankProgram, Record
from divisible.user_warnings import warn_user
from pipeline.calls.call_agreement import ACCUMULATES, CALLS
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.hooks.optimizers import check_optimizers
from pipeline.hooks.update_agreement import UpdateAgreement
from pipeline.stages.reports import PendingReports
from pipeline.stages.stage import Stage
from pipeline.start.agreement import Start
from pipeline.step import results
from pipeline.step.accumulated import Accumulated
from pipeline.step.carried_counts import CarriedCounts
from pipeline.step.confirming import Confirming
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.cutting import Cutting
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.early_updates import EarlyUpdates
from pipeline.step.empty_replicas import sample_from_elsewhere
from pipeline.step.evaluating import evaluating
from pipeline.step.late_dict import LateDict, LateValue
from pipeline.step.making import (
    make_runner,
    make_stages,
    make_ties,
    make_updates,
    warn_of_early_draws,
)
from pipeline.step.message_shapes import MessageShapes, find_message_shapes
from pipeline.step.overlap import Overlap
from pipeline.step.refusals import REFUSED, check_refusals, refusal_of
from pipeline.step.runner import Runner
from pipeline.step.step_end import StepEnd, of_replicas
from pipeline.step.unconfirmed_forwards import UnconfirmedForwards

#: The vote of a rank on which a parameter has no shape yet.
UNSIZED = 1
# A loss scale that is too large is noticed by the infinities that it causes.
_QUIET = {"over": "ignore", "invalid": "ignore"}
_NOTHING = nullcontext()


class Step:
    """One rank's part in the steps, evaluations and predictions of a pipeline.

    All ranks must call these methods, within a call that they compare.

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
        n_steps (int): Number of minibatches that :meth:`train` has completed.
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
        self.stages: dict[int, Stage] = {}

    def lay_out(self, start: Start) -> None:
        """Makes stages, exchanges and runner for the layers; all ranks must call it.

        Hooks of optimizers that are known stay known.

        Args:
            start (Start): Agreed arguments, with the layers that this rank has now.
        """
        ranks, hooks, self.start = self._ranks, None, start
        self.overlap.check(start, ranks.n_replicas)
        self.stages = make_stages(start, ranks, self.make_stage)
        if self.updates is not None:
            hooks = self.updates.hooks
            self.close()
            hooks.forget_layers()
        self._several = [*self.stages.values()]
        layers = [stage.layers for stage in self._several]
        params = [param for part in layers for param in part.params()]
        ranks.calls.streamed = [p for p in params if getattr(p, "is_streamed", False)]
        ranks.calls.carriers = layers[0].carried_states
        self._weights = scope_for(params)
        self.ties = make_ties(start, self.stages, ranks)
        self.updates = make_updates(start, self.stages, ranks, hooks)
        if self.confirming is not None:
            self.updates.hooks.late = self.confirming.late
        self.runner = make_runner(start, self.stages, ranks)
        self._is_laid_out = False
        self.current.prepare(self.runner)
        self._early_updates = EarlyUpdates.of(self._several, self.ties, ranks)

    @property
    def are_unsized(self) -> bool:
        """Whether a layer gets its size at its first call, which is still to come."""
        return any(stage.is_unsized for stage in self._several)

    def train(
        self, x: Any, t: Any, optimizer: Any, before: Accumulated | None = None
    ) -> dict[str, float]:
        """Runs the forward and backward of a minibatch; see :meth:`.Pipeline.step`.

        Args:
            x (array or tuple of arrays): Inputs; read on the first stage's rank only.
            t (array or tuple of arrays): Targets; read on the last stage's rank only.
            optimizer (chainer.Optimizer or list): Optimizers whose ``update`` the
                script calls next; ``None`` if they are not known.
            before (Accumulated or None): Gradients to add to.
        """
        calls, program = self._ranks.calls, self.current.training
        updates, exchanges, scale = self._early_updates, None, None
        if self.early_exchanges.are_wanted:
            exchanges = self.early_exchanges
        if not self.n_steps:
            warn_of_early_draws(self._several[0], self._ranks)
        errors = {} if self._loss_scale is None else _QUIET
        with chainer.force_backprop_mode(), np.errstate(**errors):
            if self._loss_scale is not None:
                scale = self._loss.scale = float(self._loss_scale)
            if updates is not None:
                updates.begin(optimizer, scale)
            elif optimizer is not None:
                check_optimizers(optimizer)
            alike = self.updates.say(self.n_steps)
            confirming, unconfirmed = self.confirming, None
            if confirming is not None:
                place = self.updates, self.current, self.runner, self._several
                unconfirmed = confirming.begin(*place)
            elif self.updates.clips and not self.overlap.feature:
                self.overlap.wait_for("GradientClipping")
            inputs, counts = self._cutting.cut(program.n_microbatches, x, t)
            vote, refusal = 0, ""
            if self._ranks.n_replicas > 1 and self.are_unsized:
                vote = UNSIZED
            if self.vetoes and (refusal := refusal_of(self.vetoes)):
                vote = REFUSED
            said = scale if unconfirmed is None else confirming.loss_scale(scale)
            self._begin_call(counts, loss_scale=said, alike=alike, vote=vote)
            if not self._is_laid_out:
                # The first step is compared before its first message, so refusals come
                # in time.
                calls.finish()
                check_refusals(self._ranks, refusal)
                self._is_laid_out = True
                place = self.start, self._ranks, self.runner, self.stages
                schedule = self.current.schedule
                self.message_shapes = find_message_shapes(*place, inputs, schedule)
            if exchanges is not None:
                exchanges.begin(self.ties)
            if unconfirmed is None:
                self._run(program, inputs, updates, exchanges)
            else:
                # The first layer may change its inputs in place.
                copies = [copied(tensors) for tensors in inputs]
                if self._run(program, copies, unconfirmed=unconfirmed) is None:
                    inputs, _ = self._cutting.cut(program.n_microbatches, x, t)
                    if scale is not None:
                        scale = self._loss.scale = float(self._loss_scale)
                    self._run(program, inputs)
                confirming.late.settle()
            self.record = self.runner.record
            for stage in self._several:
                stage.check_gradients()
            if self.end is not None and self.end.late is not None:
                self.end.late.read()
            result = self._end(f"the result of step {self.n_steps + 1}")
            correction, end = 1.0, self.end
            if not (result or self.overlap.feature or self.current.trial):
                names, read = self._loss.names, end.means
                result = LateDict({name: LateValue(name, read) for name in names})
            else:
                result.update(end.means())
                correction = end.correction
            if calls.agreed.vote:
                check_refusals(self._ranks, refusal)
                self._size_alike(inputs)
            if calls.agreed.unlike:
                self.updates.check()
            if exchanges is not None:
                exchanges.end()
            for stage in self._several:
                stage.finish(scale, correction)
            if self.ties is not None:
                self.ties.add_up()
            if before is not None:
                before.add()
            if updates is not None:
                updates.end()
            self.n_steps += 1
            if confirming is not None:
                confirming.end()
            if calls.carriers:
                self._carried.keep(calls.agreed.n_samples)
        return result

    def settle(self) -> None:
        """Ends what the last step has left under way; all ranks must call it."""
        if late_numbers.under_way:
            late_numbers.read_all(self._ranks.calls)
        if self.confirming is not None:
            self.confirming.late.settle()

    def evaluate(self, x: Any, t: Any) -> tuple[dict[str, float], StepEnd]:
        """Runs a forward and the loss; returns the means of reports, and the end."""
        program = self.current.evaluation
        with evaluating():
            inputs, counts = self._cutting.cut(program.n_microbatches, x, t)
            self._begin_call(counts)
            self._run(program, inputs)
            reported = self._end("the result of an evaluation")
            return reported, self.end

    def predict(self, x: Any, axis: int | Sequence[int]) -> results.LateOutputs:
        """Runs a forward; returns the outputs, which may be under way."""
        program = self.current.evaluation
        with evaluating():
            n = program.n_microbatches
            inputs, n_inputs = self._cutting.inputs(x, n, split_unequally)
            if self._is_last:
                self._loss.start(None, self._device)
            # Values that layers report are not returned.
            self._begin_call((n_inputs, -1, -1), reports=False)
            outputs = self._run(program, inputs)
            ranks, calls = self._ranks, self._ranks.calls
            calls.finish()
            if calls.carriers:
                self._carried.tell(self._several, calls.agreed.n_samples, ranks.replica)
            return results.LateOutputs(ranks, outputs, axis, self._device)

    def reset_states(self, of_training: bool = True) -> None:
        """Drops the states of layers, also those of training if wanted."""
        for stage in self._several:
            stage.carried.reset(of_training)
        if of_training:
            self._carried.reset()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the number of steps, and the counts of states."""
        self.n_steps = int(serializer("n_steps", self.n_steps))
        if self._carried.are_known or isinstance(serializer, chainer.Deserializer):
            self._carried.serialize(serializer)

    def close(self) -> None:
        """Frees the communicators and buffers of messages; all ranks must call it."""
        if self.confirming is not None:
            # Optimizers may go on without the pipeline.
            self.confirming.late.want(False)
        self.runner.close()
        if self.ties is not None:
            self.ties.close()
        self.updates.close()

    def _begin_call(
        self, counts: tuple[int, int, int], reports: bool = True, **said: Any
    ) -> None:
        """Begins to compare the call.

        Args:
            counts: Numbers of samples, as from :meth:`.Cutting.cut`.
            reports (bool): Whether the values that layers report are wanted.
            said: Further arguments of :meth:`.CallAgreement.start`.
        """
        ranks, calls = self._ranks, self._ranks.calls
        if calls.carriers:
            said["carried"] = self._carried.fewest(self._several, ranks.replica)
        # Ranks expect reports if the last call of this kind had some.
        reports = reports and self._reports[calls.call].are_expected
        calls.start(*counts, reports, **said)
        if calls.carriers and self._is_first:
            # This rank sends the first message, which must wait until states are
            # compared.
            calls.finish()

    def _run(
        self,
        program: RankProgram,
        inputs: Sequence[Tensors],
        updates: EarlyUpdates | None = None,
        exchanges: EarlyExchanges | None = None,
        unconfirmed: UnconfirmedForwards | None = None,
    ) -> list[Any] | None:
        decide = None if updates is None else updates.decide
        for stage in self._several:
            listener = None if exchanges is None else exchanges.listener(stage)
            stage.begin(self.n_steps, program.n_microbatches, listener, decide)
        looks = None if exchanges is None else exchanges.looks
        # With one microbatch each weight is used once.
        n_uses = program.n_microbatches
        unchanged = self._weights(n_uses) if n_uses > 1 else _NOTHING
        with restored_random_state(self._device), unchanged:
            return self.runner.run(program, inputs, looks, unconfirmed)

    def _end(self, about: str) -> dict[str, float]:
        """Compares the call, and begins to tell all ranks its means (``about``).

        Returns:
            The means of values that layers reported; mostly there are none.
        """
        ranks, calls, names = self._ranks, self._ranks.calls, self._loss.names
        values = [0.0] * (2 * len(names) + 1)
        if self._is_last:
            values = self._loss.outcome()
            for text in self._loss.warnings():
                warn_user(text)
        calls.finish()
        if calls.carriers:
            self._carried.tell(self._several, calls.agreed.n_samples, ranks.replica)
        rows, late = np.array([values]), None
        if ranks.n_replicas > 1:
            rows = of_replicas(ranks, rows[0], about)
        elif ranks.size > 1:
            told = late_numbers.Filling(ranks.comm, rows, ranks.last, about, RESULT_TAG)
            place = ranks.timeout, ranks.watch
            late = late_numbers.LateNumbers(calls, rows, told, *place)
        self.end = StepEnd(names, ranks.replica, rows, late)
        pending = self._reports[calls.call]
        pending.are_expected = False
        for stage in self._several:
            if stage.reports.values:
                pending.add(stage.reports)
        if not calls.agreed.somebody_reports:
            return {}
        return results.reported(ranks, pending)

    def _size_alike(self, inputs: Sequence[Tensors]) -> None:
        """Calls layers without sizes in replicas that have no samples."""
        place = self._ranks, self._loss, self._device
        if (sample := sample_from_elsewhere(*place, inputs)) is not None:
            with evaluating():
                self._run(self.current.evaluation, sample)
            self.reset_states(of_training=False)
