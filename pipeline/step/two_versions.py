"""Steps of a schedule with two weight versions: gradients come one step late.

A call of a step ends in the middle of its minibatch. Its last backwards on this rank
are carried into the next call, where they run between the first forwards::

    script   step 0   | update  | step 1        | update     | step 2     ...
    rank 0   F F F B  | no rule | F B' F B' F B | minibatch 0 | F B' ...
    result   of 0     |         | of 1          |            | of 2

The loss of a minibatch is known in its own step, because the last stage carries
nothing. Its gradient is complete in the next one. Until there is a gradient, update
rules are disabled, so that the first ``optimizer.update()`` changes no parameter.

**Flush.** Evaluations, predictions, ``close`` and the end of the script run the carried
backwards first, because messages of them are under way. That changes no gradient, and
no step at which it is used. :meth:`TwoVersionStep.flush` alone hands out the gradient
of the last minibatch; the step after it is like a first one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import chainer
from mpi4py import MPI

from divisible.backward.tensors import copied
from divisible.communication.aborting import end_all_ranks
from divisible.communication.leaving import at_end
from divisible.communication.signatures import Tensors
from divisible.planning.retained_arrays import FULL
from divisible.random_streams import restored_random_state
from divisible.schedules.actions import Action
from divisible.schedules.late_programs import LatePrograms
from divisible.schedules.rank_program import RankProgram
from divisible.schedules.schedule import Schedule
from mixed_precision import LossScale
from pipeline.calls.ranks import Ranks
from pipeline.hooks.optimizers import is_mixed
from pipeline.hooks.resting_rules import let_rest, wake
from pipeline.stages.two_versions import TwoVersionStage
from pipeline.start.agreement import Start
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.overlap import Overlap
from pipeline.step.step import Step

# Steps with carried backwards. MPI must not end before their messages.
_under_way: dict[TwoVersionStep, None] = {}


def make_step(start: Start, current: CurrentSchedule, ranks: Ranks) -> Step:
    """Returns one rank's part in the steps of a pipeline.

    Args:
        start (Start): Arguments of all ranks, as agreed at the start.
        current (CurrentSchedule): The first schedule.
        ranks (Ranks): All ranks of the pipeline.
    """
    has_two = current.schedule.weight_versions > 1
    return (TwoVersionStep if has_two else Step)(start, current, ranks)


class TwoVersionStep(Step):
    """One rank's part in steps of a schedule with two weight versions.

    Args:
        start (Start): See :class:`.Step`.
        current (CurrentSchedule): See :class:`.Step`.
        ranks (Ranks): See :class:`.Step`.

    Raises:
        ValueError: If an argument does not go together with two weight versions.
    """

    make_stage = TwoVersionStage
    stages: dict[int, TwoVersionStage]

    def __init__(self, start: Start, current: CurrentSchedule, ranks: Ranks) -> None:
        super().__init__(start, current, ranks)
        schedule, given = current.schedule, start.arguments
        self.overlap = _LateOverlap(given.overlap_minibatches, schedule)
        found = {
            "transport='chainermn'": given.transport == "chainermn",
            "hold_in": any(place != "memory" for place in start.hold_in),
            "hold_dtype": given.hold_dtype != FULL,
            "loss_scale": isinstance(given.loss_scale, LossScale),
            "weight_groups='auto'": current.trial is not None,
        }
        for feature, is_there in found.items():
            if is_there:
                raise ValueError(_refusal(schedule, feature))
        # Updates need no confirmation: a gradient is complete a step before its update.
        self.confirming = None
        ranks.calls.excluded["compress"] = _refusal(schedule, "Compress")
        # Whether this minibatch has carried backwards, and whether a gradient has not
        # been handed out.
        self._is_open = self._awaits = False
        self._resting: list[Any] = []
        self._trains = True

    def lay_out(self, start: Start) -> None:
        """Makes stages and programs; see :meth:`.Step.lay_out`."""
        super().lay_out(start)
        schedule, rank = self.current.schedule, self._ranks.rank
        self._programs = LatePrograms.of(schedule, rank, start.routes)
        operations = self._programs.flush.operations
        self._carried_over = {o.microbatch for o in operations if isinstance(o, Action)}
        ranks = schedule.stage_ranks
        # Results of forwards are used in the same step, those of backwards perhaps not.
        later = frozenset(ranks[ranks.index(rank) + 1 :])
        self.runner.awaited = self._later = later

    def train(
        self, x: Any, t: Any, optimizer: Any, before: None = None
    ) -> dict[str, float]:
        """Runs a minibatch, and the rest of the one before; see :meth:`.Step.train`.

        The gradients are those of the minibatch before, ``None`` in the first step.

        Raises:
            ValueError: If an optimizer is in mixed precision, with parameters that
                always are the same arrays.
        """
        if any(is_mixed(each.optimizer) for each in self.updates.hooks.given):
            raise ValueError(_refusal(self.current.schedule, "MixedPrecision"))
        self._let_update(True)
        programs, self._trains = self._programs, chainer.config.train
        self.current.training = programs.later if self._is_open else programs.first
        result = super().train(x, t, optimizer)
        for stage in self._stage_list:
            stage.keep_weights()
        self._let_update(self._awaits)
        self._is_open = self._awaits = True
        self._ranks.calls.excluded["save"] = (
            f"a snapshot cannot hold the gradient of step {self.n_steps}, which"
            f" schedule {self.current.schedule.name!r} leaves to the next update: call"
            f" pipe.flush() on all ranks, then optimizer.update(), and save after that"
        )
        if self._ranks.size > 1:
            _under_way[self] = None
        return result

    def _run(
        self, program: RankProgram, inputs: Sequence[Tensors], *others: Any, **more: Any
    ) -> list[Any] | None:
        """Runs a program; see :meth:`.Step._run`."""
        if program is self.current.training:
            # Graphs refer to inputs until the next step, but a script may write its
            # next minibatch into the same arrays.
            inputs = [
                copied(tensors) if number in self._carried_over else tensors
                for number, tensors in enumerate(inputs)
            ]
        return super()._run(program, inputs, *others, **more)

    def evaluate(self, x: Any, t: Any) -> dict[str, float]:
        """Runs a forward and the loss; see :meth:`.Step.evaluate`."""
        self.drain()
        return super().evaluate(x, t)

    def predict(self, x: Any, axis: Any) -> tuple[Any, ...]:
        """Runs a forward; see :meth:`.Step.predict`."""
        self.drain()
        return super().predict(x, axis)

    def drain(self) -> None:
        """Runs the carried backwards; all ranks must call it."""
        if not self._is_open:
            return
        for stage in self._stage_list:
            stage.begin_flush()
        self.runner.awaited = None
        program = self._programs.flush
        trains = chainer.using_config("train", self._trains)
        is_cut = program.n_microbatches > 1
        unchanged = self._unchanged_weights() if is_cut else nullcontext()
        random = restored_random_state(self._device)
        with chainer.force_backprop_mode(), trains, random, unchanged:
            self.runner.run(program, [])
        for stage in self._stage_list:
            stage.end_flush()
        self.runner.awaited = self._later
        self._is_open = False
        _under_way.pop(self, None)

    def flush(self) -> bool:
        """Ends the last minibatch, and stores its gradients in ``param.grad``.

        Returns:
            bool: Whether there are gradients that no step has handed out. If not, the
            next update changes no parameter.
        """
        self.drain()
        is_late, self._awaits = self._awaits, False
        scale = None if self._loss_scale is None else float(self._loss_scale)
        for stage in self._stage_list:
            stage.hand_out(scale)
        self._let_update(is_late)
        self._ranks.calls.excluded.pop("save", None)
        return is_late

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the number of steps; see :meth:`.Step.serialize`.

        Raises:
            ValueError: If a gradient waits that cannot be written.
        """
        excluded = self._ranks.calls.excluded
        if isinstance(serializer, chainer.Deserializer):
            self.drain()
            self._awaits = False
            for stage in self._stage_list:
                stage.drop_gradients()
            excluded.pop("save", None)
        elif "save" in excluded:
            raise ValueError(excluded["save"])
        super().serialize(serializer)

    def close(self) -> None:
        """Frees communicators and buffers; see :meth:`.Step.close`."""
        self.drain()
        super().close()

    def drain_at_end(self) -> None:
        """Runs the carried backwards when the script ends, if no call has failed."""
        calls = self._ranks.calls
        if not calls.has_failed:
            with calls.guarded(), chainer.using_device(self._device):
                self.drain()

    def _let_update(self, may_update: bool) -> None:
        """Enables or disables the update rules of this rank's parameters."""
        for rule in self._resting:
            wake(rule)
        self._resting = []
        if may_update:
            return
        for stage in self._stage_list:
            for param in stage.params():
                rule = param.update_rule
                if rule is not None and rule.enabled:
                    let_rest(rule)
                    self._resting.append(rule)


class _LateOverlap(Overlap):
    """The overlap of minibatches where gradients come one step late.

    Args:
        wish (bool or str): Argument ``overlap_minibatches`` of the pipeline.
        schedule (Schedule): The schedule.
    """

    def __init__(self, wish: bool | str, schedule: Schedule) -> None:
        super().__init__(wish)
        self._schedule = schedule

    def check(self, start: Start, n_replicas: int) -> None:
        """Searches for features that are known at the start; see :class:`.Overlap`."""
        super().check(start, n_replicas)
        if not start.knows_count:
            # A gradient is handed out when its count is that of another minibatch.
            self.wait_for("lossfun")

    def wait_for(self, feature: str, obstacle: str = "") -> None:
        """Refuses features that treat gradients or weights of one minibatch alone.

        Raises:
            ValueError: For all features but the norm of all gradients, for which ranks
                wait between two steps.
        """
        if feature != "GradientClipping":
            raise ValueError(_refusal(self._schedule, feature))
        super().wait_for(feature, obstacle)


def _refusal(schedule: Schedule, feature: str) -> str:
    return (
        f"schedule {schedule.name!r} does not go together with {feature}: it has two"
        f" weight versions, and gradients one step late. Leave {feature} out, or take"
        f" another schedule"
    )


@at_end
def _drain_at_end() -> None:
    """Runs carried backwards when the script ends, unless a call has failed."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    try:
        for step in [*_under_way]:
            step.drain_at_end()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        end_all_ranks("failed at its end", lambda: sys.stderr.write(text))
