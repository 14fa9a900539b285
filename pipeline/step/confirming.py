"""Steps whose updates are confirmed after they have been made.

::

    begin     examines optimizers; the first forwards of this step are unconfirmed, if
              the update before is
    end       decides whether the next update waits for other ranks

:mod:`pipeline.hooks.late_confirmation` describes the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mixed_precision import LossScale
from pipeline.calls.ranks import Ranks
from pipeline.hooks.late_confirmation import LateConfirmation, obstacle
from pipeline.hooks.update_agreement import UpdateAgreement
from pipeline.stages.stage import Stage
from pipeline.start.arguments import Arguments
from pipeline.step.current_schedule import CurrentSchedule
from pipeline.step.overlap import Overlap
from pipeline.step.runner import Runner
from pipeline.step.unconfirmed_forwards import UnconfirmedForwards


class Confirming:
    """The late confirmation of a rank's updates, as its steps use it.

    Args:
        overlap (Overlap): Whether minibatches overlap.
        arguments (Arguments): Arguments of the pipeline.
        ranks (Ranks): All ranks of the pipeline.

    Attributes:
        late (LateConfirmation): Confirms the updates, or takes them back.
    """

    def __init__(self, overlap: Overlap, arguments: Arguments, ranks: Ranks) -> None:
        self.late = LateConfirmation(ranks)
        self._overlap, self._transport = overlap, arguments.transport
        scale = arguments.loss_scale
        self._loss_scale = scale if isinstance(scale, LossScale) else None
        self._is_possible = False

    def begin(
        self,
        updates: UpdateAgreement,
        current: CurrentSchedule,
        runner: Runner,
        stages: Sequence[Stage],
    ) -> UnconfirmedForwards | None:
        """Begins a step.

        Args:
            updates (UpdateAgreement): Optimizers of this rank, as far as known.
            current (CurrentSchedule): The schedule that the step runs.
            runner (Runner): Runs the schedule.
            stages: Stages of this rank.

        Returns:
            The first forwards of the step, if the last update is not confirmed.

        Raises:
            ValueError: If the next update needs the whole model, and cannot be
                confirmed late.
        """
        self._is_possible = updates.clips or self._loss_scale is not None
        if self._is_possible:
            reason = obstacle(updates.hooks.given, self._loss_scale)
            if not reason and self._transport == "chainermn":
                reason = f"transport={self._transport!r}, whose sends block"
            is_cut = current.training.n_microbatches > 1
            if not (reason or is_cut) and any(each.keeps_states for each in stages):
                reason = "layers that keep a state from minibatch to minibatch"
            if reason:
                feature = "GradientClipping" if updates.clips else "loss_scale"
                self._overlap.wait_for(feature, reason)
        if self.late.update is None:
            return None
        links = itertools.chain(*(stage.links() for stage in stages))
        return UnconfirmedForwards(current.first_forwards(runner), self.late, links)

    def loss_scale(self, scale: float | None) -> float | None:
        """Returns the loss scale as if the last update were right, on all ranks alike.

        Args:
            scale (float or None): The loss scale on this rank.
        """
        return self.late.update.loss_scale or scale

    def end(self) -> None:
        """Ends a step; decides whether the next update waits."""
        self.late.want(self._is_possible)
