"""The pass of a minibatch through a pipeline: what happens around a run of a schedule.

::

    training      all passes
    early updates begin
                  the feed cuts x and t; the ranks begin to compare the call
    early exchanges begin
                  the stages begin, and the runner runs this rank's program
    gradients are checked
                  the results are told to all ranks; the call has been compared
    early exchanges end; gradients are what they are in the end; early updates end

Early updates need streamed layers, and early exchanges an optimizer that has asked for
them. Where there is neither, a step calls neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import chainer
import numpy as np

from divisible.communication.errors import DisagreementError
from divisible.communication.signatures import Tensors
from divisible.random_streams import restored_random_state
from divisible.schedules.rank_program import RankProgram, Record
from divisible.user_warnings import warn_user
from pipeline.calls.ranks import Ranks
from pipeline.hooks.optimizers import check_optimizers
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage, evaluating
from pipeline.start.arguments import Arguments
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.early_updates import EarlyUpdates
from pipeline.step.feed import CutMinibatch, Feed
from pipeline.step.parts import Parts
from pipeline.step.results import Results

# Votes of a rank on a step, of which the largest counts: some parameter has no shape
# yet; the rank refuses to train.
_UNSIZED, _REFUSED = 1, 2


class MinibatchPass:
    """One rank's part in the passes of minibatches.

    Each method that passes one is called on all ranks, within a call that they compare.

    Args:
        arguments (Arguments): Those of this rank, of the pipeline.
        ranks (Ranks): All of the pipeline.
        loss (Loss): Follows the last stage.
        dtypes: The floating-point types of all stages' parameters.

    Attributes:
        early_exchanges (EarlyExchanges): Of gradients, while a step computes.
        vetoes (WeakSet): Objects that may refuse to train. Each has a text ``refusal``,
            which is empty if it does not.
        results (Results): Of the last pass, on all ranks; once there are parts.
        record (Record or None): The last step on this rank: when it did what.
        n_steps (int): How many minibatches :meth:`train` has passed.
    """

    results: Results
    _parts: Parts
    _stages: list[Stage]

    def __init__(
        self,
        arguments: Arguments,
        ranks: Ranks,
        loss: Loss,
        dtypes: Collection[np.dtype],
    ) -> None:
        self._ranks, self._loss = ranks, loss
        self._loss_scale = arguments.loss_scale
        self._device = arguments.stages[0].device
        self._feed = Feed(ranks, loss, self._device, dtypes)
        self.early_exchanges = EarlyExchanges(ranks)
        self._early_updates: EarlyUpdates | None = None
        self.vetoes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_trained = False
        self.record: Record | None = None
        self.n_steps = 0
        # By replica, of how many samples the states are that layers carry in training;
        # 0 where nothing is known.
        self._n_carried = [0] * ranks.n_replicas

    def lay_out(self, parts: Parts) -> None:
        """Passes minibatches through these parts from now on."""
        self._parts = parts
        self._stages = list(parts.stages.values())
        self.results = Results(self._ranks, self._loss, parts.stages)
        self._ranks.calls.carriers = self._stages[0].layers.carried_states
        self._early_updates = EarlyUpdates.of(self._stages, parts.ties, self._ranks)

    def train(
        self,
        program: RankProgram,
        forwards: RankProgram,
        x: Any,
        t: Any,
        optimizer: Any,
    ) -> dict[str, float]:
        """Passes one forward and backward; see :meth:`.Pipeline.step`.

        Args:
            program (RankProgram): This rank's part of the schedule.
            forwards (RankProgram): This rank's part of the forwards alone.
            x (array or tuple of arrays): What the user gave.
            t (array or tuple of arrays): What the user gave.
            optimizer (chainer.Optimizer or list): Of which ``update`` is called next.
        """
        parts, calls = self._parts, self._ranks.calls
        updates, exchanges = self._early_updates, None
        if self.early_exchanges.are_wanted:
            exchanges = self.early_exchanges
        if not self.n_steps:
            self._check_early_draws()
        # Whoever chose a loss scale looks for infinities.
        quiet = {"over": "ignore", "invalid": "ignore"}
        errors = {} if self._loss_scale is None else quiet
        with chainer.force_backprop_mode(), np.errstate(**errors):
            scale = None
            if self._loss_scale is not None:
                scale = self._loss.scale = float(self._loss_scale)
            if updates is not None:
                updates.begin(optimizer, scale)
            elif optimizer is not None:
                check_optimizers(optimizer)
            said = parts.updates.say(self.n_steps)
            cut = self._feed.read(program.n_microbatches, x, t)
            reports = self.results.are_expected
            vote = _UNSIZED * (self._ranks.n_replicas > 1 and parts.are_unsized)
            refusal = self._refusal() if self.vetoes else ""
            if refusal:
                vote = _REFUSED
            self._start(cut, reports, loss_scale=scale, alike=said, vote=vote)
            if not self._has_trained:
                # What is refused is so before the first message.
                calls.finish()
                self._check_refusals(refusal)
                self._has_trained = True
            if exchanges is not None:
                exchanges.begin(parts.ties)
            self._run(program, cut.inputs, updates, exchanges)
            self.record = parts.runner.record
            for stage in self._stages:
                stage.check_gradients()
            result = self.results.share()
            self._check_refusals(refusal)
            if calls.agreed.vote:
                self._size_alike(forwards, cut)
            if calls.agreed.unlike:
                parts.updates.check()
            if exchanges is not None:
                exchanges.end()
            for stage in self._stages:
                stage.finish(scale, self.results.correction)
            if parts.ties is not None:
                parts.ties.add_up()
            if updates is not None:
                updates.end()
            self.n_steps += 1
            if calls.carriers:
                # States of samples that this minibatch did not have are kept.
                seen = zip(self._n_carried, calls.agreed.n_samples)
                self._n_carried = [max(counts) for counts in seen]
        return result

    def _refusal(self) -> str:
        return next((each.refusal for each in self.vetoes if each.refusal), "")

    def _check_refusals(self, refusal: str) -> None:
        """Refuses the step on all ranks, if one of them does.

        Args:
            refusal (str): Why this rank does; empty if it does not.
        """
        ranks = self._ranks
        if ranks.calls.agreed.vote != _REFUSED:
            return
        said = ranks.all_gather(refusal, "to say what they refuse")
        if refusal:
            raise ValueError(refusal)
        rank = next(rank for rank, text in enumerate(said) if text)
        raise DisagreementError(f"rank {rank} refuses to train: {said[rank]}")

    def evaluate(self, program: RankProgram, x: Any, t: Any) -> dict[str, float]:
        """Passes one forward, to the loss; see :meth:`.Pipeline.evaluate`."""
        with evaluating():
            cut = self._feed.read(program.n_microbatches, x, t)
            self._start(cut, self.results.are_expected)
            self._run(program, cut.inputs)
            return self.results.share()

    def predict(
        self, program: RankProgram, x: Any, axis: int | Sequence[int]
    ) -> tuple[Any, ...]:
        """Passes one forward; returns outputs as :meth:`.Pipeline.predict` does."""
        with evaluating():
            cut = self._feed.read_inputs(program.n_microbatches, x)
            self._start(cut)
            results = self._run(program, cut.inputs)
            return self.results.share_outputs(results, axis, self._device)

    def reset_states(self) -> None:
        """Lets layers begin anew that carry a state, in training and evaluation."""
        self._parts.reset_states(of_training=True)
        self._n_carried = [0] * self._ranks.n_replicas

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes how many steps there were, and samples with a state."""
        self.n_steps = int(serializer("n_steps", self.n_steps))
        if not isinstance(serializer, chainer.Deserializer):
            if any(self._n_carried):
                serializer("n_carried", np.array(self._n_carried))
            return
        n_replicas = self._ranks.n_replicas
        try:
            saved = serializer("n_carried", None)
        except KeyError:
            # No layer carried a state, or an earlier version has saved it.
            saved = [0] * n_replicas
        if len(saved) != n_replicas:
            # Each replica gets an equal share of the states.
            saved = [sum(saved) // n_replicas] * n_replicas
        self._n_carried = [int(n) for n in saved]

    def _check_early_draws(self) -> None:
        """Warns if a serial script draws other weights; the first rank has read x."""
        draws = self._stages[0].layers.early_draws
        reads = self._ranks.rank == self._ranks.first and self._ranks.replica == 0
        if draws is None or not reads:
            return
        if (text := draws.warning()) is not None:
            warn_user(text)

    def _start(self, cut: CutMinibatch, reports: bool = False, **said: Any) -> None:
        """Begins to compare the call.

        Args:
            cut (CutMinibatch): Where this rank reads it.
            reports (bool): Whether layers of this rank may report something.
            said: What else there is to compare.
        """
        calls, carried = self._ranks.calls, None
        if calls.carriers:
            carried = self._fewest_carried()
        calls.start(*cut.n_samples, reports, carried=carried, **said)
        if calls.carriers and self._ranks.rank == self._ranks.first:
            # It sends the first message: not before it is known that states suffice.
            calls.finish()

    def _fewest_carried(self) -> tuple[int, str] | None:
        """Returns of how many samples states are; see :meth:`.CarriedRows.fewest`."""
        trains, n_trained = chainer.config.enable_backprop, self._n_carried
        fewest = (
            stage.carried.fewest(trains, n_trained[self._ranks.replica])
            for stage in self._stages
        )
        return min(filter(None, fewest), default=None)

    def _size_alike(self, program: RankProgram, cut: CutMinibatch) -> None:
        """Calls layers of replicas without samples that get sizes at a first call.

        Those of other replicas have been called, and gradients are exchanged next. The
        layers are called with a sample of another replica, without a backward.

        Args:
            program (RankProgram): This rank's part of the forwards.
            cut (CutMinibatch): The minibatch that has passed.
        """
        agreed = self._ranks.calls.agreed
        if all(agreed.n_samples) or not any(agreed.n_samples):
            return
        replica = next(i for i, n in enumerate(agreed.n_samples) if n)
        sample = self._feed.read_elsewhere(cut, replica)
        if sample is not cut:
            with evaluating():
                self._run(program, sample.inputs)
            self._parts.reset_states(of_training=False)

    def _run(
        self,
        program: RankProgram,
        inputs: Sequence[Tensors],
        updates: EarlyUpdates | None = None,
        exchanges: EarlyExchanges | None = None,
    ) -> list[Any]:
        decide = None if updates is None else updates.decide
        for stage in self._stages:
            listener = None if exchanges is None else exchanges.listener(stage)
            stage.begin(self.n_steps, program.n_microbatches, listener, decide)
        looks = None if exchanges is None else exchanges.looks
        with restored_random_state(self._device):
            return self._parts.runner.run(program, inputs, looks)
