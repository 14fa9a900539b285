"""A step: a minibatch on its way through a pipeline.

::

    early updates begin
                  x and t are cut; the ranks begin to compare the call
    early exchanges begin
                  the stages begin, and the runner runs this rank's program
    gradients are checked
                  the comparison of the call has ended; the ranks begin to send means
    early exchanges end; gradients are corrected; early updates end

The lines on the right are also those of evaluations. A step does not touch features
that the run does not use. An attribute asks for each, and its work is in a module of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import chainer
import numpy as np

from divisible.backward.tensors import copied
from divisible.communication import late_numbers
from divisible.communication.signatures import Tensors
from divisible.communication.tags import RESULT_TAG
from divisible.minibatch import split_unequally
from divisible.random_streams import restored_random_state
from divisible.schedules.rank_program import RankProgram
from divisible.user_warnings import warn_user
from pipeline.hooks.optimizers import check_optimizers
from pipeline.step import results
from pipeline.step.accumulated import Accumulated
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.early_updates import EarlyUpdates
from pipeline.step.empty_replicas import sample_from_elsewhere
from pipeline.step.evaluating import evaluating
from pipeline.step.late_dict import LateDict, LateValue
from pipeline.step.layout import Layout
from pipeline.step.making import warn_of_early_draws, warn_of_gpu_products
from pipeline.step.message_shapes import find_message_shapes
from pipeline.step.refusals import REFUSED, check_refusals, refusal_of
from pipeline.step.step_end import StepEnd, of_replicas
from pipeline.step.unconfirmed_forwards import UnconfirmedForwards

#: The vote of a rank on which a parameter has no shape yet.
UNSIZED = 1
_NOTHING = nullcontext()


class Step(Layout):
    """One rank's part in the steps, evaluations and predictions of a pipeline.

    All ranks must call these methods, within a call that they compare.
    """

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
        updates, calls = self._early_updates, self._ranks.calls
        exchanges = self.early_exchanges if self.early_exchanges.are_wanted else None
        if not self.n_steps:
            warn_of_early_draws(self._stage_list[0], self._ranks)
            warn_of_gpu_products(self._device)
        with chainer.force_backprop_mode(), np.errstate(**self._float_errors):
            scale = None if self._loss_scale is None else self._read_loss_scale()
            if updates is not None:
                updates.begin(optimizer, scale)
            elif optimizer is not None:
                check_optimizers(optimizer)
            alike = self.updates.numbers(self.n_steps)
            unconfirmed = self._begin_unconfirmed()
            program = self.current.training
            inputs, counts = self._cutting.cut(program.n_microbatches, x, t)
            compared = scale
            if unconfirmed is not None:
                compared = self.confirming.loss_scale(scale)
            refusal = refusal_of(self.vetoes) if self.vetoes else ""
            vote = REFUSED if refusal else 0
            if not vote and self._ranks.n_replicas > 1 and self.are_unsized:
                vote = UNSIZED
            self._begin_call(counts, loss_scale=compared, alike=alike, vote=vote)
            if not self._has_begun:
                self._begin_first(inputs, refusal)
            if exchanges is not None:
                exchanges.begin(self.ties)
            if unconfirmed is None:
                self._run(program, inputs, updates, exchanges, tells=self._counts_late)
            else:
                inputs, scale = self._run_unconfirmed(unconfirmed, inputs, x, t, scale)
            result, correction = self._end_training()
            if calls.agreed.vote:
                check_refusals(self._ranks, refusal)
                self._size_alike(inputs)
            if calls.agreed.unlike:
                self.updates.check()
            if exchanges is not None:
                exchanges.end()
            self._finish_gradients(scale, correction, before)
            if updates is not None:
                updates.end()
            self.n_steps += 1
            if self.confirming is not None:
                self.confirming.end()
            if calls.carriers:
                self._carried.keep(calls.agreed.n_samples)
        return result

    def evaluate(self, x: Any, t: Any) -> tuple[dict[str, float], StepEnd]:
        """Runs a forward and the loss.

        Args:
            x (array or tuple of arrays): Inputs; read on the first stage's rank only.
            t (array or tuple of arrays): Targets; read on the last stage's rank only.

        Returns:
            The means of values that layers reported, by name; and the end of the call,
            which has the means of the loss and the accuracy.
        """
        program = self.current.evaluation
        with evaluating():
            inputs, counts = self._cutting.cut(program.n_microbatches, x, t)
            self._begin_call(counts)
            self._run(program, inputs)
            reported = self._end("the result of an evaluation")
            return reported, self.end

    def predict(self, x: Any, axis: int | Sequence[int]) -> results.LateOutputs:
        """Runs a forward.

        Args:
            x (array or tuple of arrays): Inputs; read on the first stage's rank only.
            axis (int or sequence of ints): Axis of the samples in the outputs, for all
                or for each.

        Returns:
            LateOutputs: The outputs, which may still be under way.
        """
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
                n_samples = calls.agreed.n_samples
                self._carried.tell(self._stage_list, n_samples, ranks.replica)
            return results.LateOutputs(ranks, outputs, axis, self._device)

    def _begin_unconfirmed(self) -> UnconfirmedForwards | None:
        """Returns the first forwards, if the last update is not confirmed yet."""
        if self.confirming is not None:
            return self.confirming.begin(
                self.updates, self.current, self.runner, self._stage_list
            )
        if self.updates.clips and not self.overlap.feature:
            self.overlap.wait_for("GradientClipping")
        return None

    def _read_loss_scale(self) -> float:
        """Reads the loss scale of this moment, and gives it to the loss."""
        self._loss.scale = float(self._loss_scale)
        return self._loss.scale

    def _begin_first(self, inputs: Sequence[Tensors], refusal: str) -> None:
        """Begins the first step of this layout, which the ranks have begun to compare.

        The first step is compared before its first message, so refusals come in time.

        Args:
            inputs: Microbatches, on the rank of the first stage.
            refusal (str): Reason why this rank refuses to train; empty if it does not.
        """
        ranks = self._ranks
        ranks.calls.finish()
        check_refusals(ranks, refusal)
        self._has_begun = True
        self.message_shapes = find_message_shapes(
            self.start, ranks, self.runner, self.stages, inputs, self.current.schedule
        )

    def _run_unconfirmed(
        self,
        unconfirmed: UnconfirmedForwards,
        inputs: Sequence[Tensors],
        x: Any,
        t: Any,
        scale: float | None,
    ) -> tuple[Sequence[Tensors], float | None]:
        """Runs a minibatch, and once more if the last update has been taken back.

        Args:
            unconfirmed (UnconfirmedForwards): The first forwards.
            inputs: Microbatches, cut from ``x``.
            x (array or tuple of arrays): Inputs of the minibatch.
            t (array or tuple of arrays): Targets of the minibatch.
            scale (float or None): Loss scale of the first run.

        Returns:
            The microbatches and the loss scale of the last run.
        """
        program = self.current.training
        # The first layer may change its inputs in place.
        copies = [copied(tensors) for tensors in inputs]
        if self._run(program, copies, unconfirmed=unconfirmed) is None:
            inputs, _ = self._cutting.cut(program.n_microbatches, x, t)
            if scale is not None:
                scale = self._read_loss_scale()
            self._run(program, inputs)
        self.confirming.late.settle()
        return inputs, scale

    def _end_training(self) -> tuple[dict[str, float], float]:
        """Ends a pass of training: the ranks have compared it, and tell each other.

        Returns:
            The means of the minibatch; and the factor for its gradients. Where they
            need not be known now, the means wait until they are read. If the number of
            samples was known before, the factor is 1 then.
        """
        self.record = self.runner.record
        for stage in self._stage_list:
            stage.check_gradients()
        if self.end is not None and self.end.late is not None:
            self.end.late.read()
        reported = self._end(self._result)
        if reported or self.overlap.feature or self.current.trial:
            return {**reported, **self.end.means()}, self.end.correction
        correction, read = 1.0, self.end.means
        if self._counts_late:
            # The last stage's rank has the number, and needs not wait for its messages.
            known = self.end.rows if self._is_last else self.end.read()
            correction = float(known[self.end.replica, -1])
        late = LateDict({name: LateValue(name, read) for name in self._loss.names})
        return late, correction

    def _finish_gradients(
        self, scale: float | None, correction: float, before: Accumulated | None
    ) -> None:
        """Stores the gradients of all parameters, whose sums are complete."""
        for stage in self._stage_list:
            stage.finish(scale, correction)
        if self.ties is not None:
            self.ties.add_up()
        if before is not None:
            before.add()

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
            said["carried"] = self._carried.fewest(self._stage_list, ranks.replica)
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
        tells: bool = False,
    ) -> list[Any] | None:
        """Runs this rank's part of a schedule; see :meth:`.Runner.run`.

        Args:
            program (RankProgram): This rank's part.
            inputs: Microbatches, on the rank of the first stage.
            updates (EarlyUpdates or None): Updates of streamed layers in this pass.
            exchanges (EarlyExchanges or None): Exchanges of gradients in this pass.
            unconfirmed (UnconfirmedForwards or None): The first forwards, if the last
                update is not confirmed.
            tells (bool): Whether to tell the means when all losses are computed.

        Returns:
            The outputs of each microbatch, on the last stage's rank. ``None`` if the
            last update was wrong, and the program must be run again.
        """
        decide = None if updates is None else updates.decide
        for stage in self._stage_list:
            listener = None if exchanges is None else exchanges.listener(stage)
            stage.begin(self.n_steps, program.n_microbatches, listener, decide)
        looks = None if exchanges is None else exchanges.looks
        # With one microbatch each weight is used once.
        n_uses = program.n_microbatches
        unchanged = self._unchanged_weights(n_uses) if n_uses > 1 else _NOTHING
        tell = self._tell_early if tells and self._is_last else None
        with restored_random_state(self._device), unchanged:
            return self.runner.run(program, inputs, looks, unconfirmed, tell)

    def _end(self, about: str) -> dict[str, float]:
        """Compares the call, and begins to tell all ranks its means (``about``).

        Returns:
            The means of values that layers reported; mostly there are none.
        """
        ranks, calls = self._ranks, self._ranks.calls
        if self._is_last:
            for text in self._loss.warnings():
                warn_user(text)
        calls.finish()
        if calls.carriers:
            self._carried.tell(self._stage_list, calls.agreed.n_samples, ranks.replica)
        self.end, self._early_end = self._early_end or self._tell(about), None
        pending = self._reports[calls.call]
        pending.are_expected = False
        for stage in self._stage_list:
            if stage.reports.values:
                pending.add(stage.reports)
        if not calls.agreed.somebody_reports:
            return {}
        return results.reported(ranks, pending)

    @property
    def _result(self) -> str:
        """The name of a step's means, for error messages."""
        return f"the result of step {self.n_steps + 1}"

    def _tell_early(self) -> None:
        """Begins to tell all ranks the means of a step that still runs."""
        self._early_end = self._tell(self._result)

    def _tell(self, about: str) -> StepEnd:
        """Begins to tell all ranks the means (``about``)."""
        ranks, names = self._ranks, self._loss.names
        values = [0.0] * (2 * len(names) + 1)
        if self._is_last:
            values = self._loss.outcome()
        rows, late = np.array([values]), None
        if ranks.n_replicas > 1:
            rows = of_replicas(ranks, rows[0], about)
        elif ranks.size > 1:
            sent = late_numbers.Filling(ranks.comm, rows, ranks.last, about, RESULT_TAG)
            late = late_numbers.LateNumbers(
                ranks.calls, rows, sent, ranks.timeout, ranks.watch
            )
        return StepEnd(names, ranks.replica, rows, late)

    def _size_alike(self, inputs: Sequence[Tensors]) -> None:
        """Calls layers without sizes in replicas that have no samples."""
        sample = sample_from_elsewhere(self._ranks, self._loss, self._device, inputs)
        if sample is not None:
            with evaluating():
                self._run(self.current.evaluation, sample)
            self.reset_states(of_training=False)
