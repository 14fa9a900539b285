"""The schedule that a pipeline runs now, and the trial of other schedules.

::

    minibatch           1    2    3    4    5    6 ...
    schedule='1f1b'     1f1b --------------------------->
    schedule='auto'     for equal stages    the fastest >
                        '--- the trial ---'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from divisible.schedules.automatic import AUTO, Trial, first_schedule
from divisible.schedules.catalogue import create
from divisible.schedules.rank_program import RankProgram
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.start.agreement import check_placement
from pipeline.start.arguments import Arguments
from pipeline.step.runner import Runner


class CurrentSchedule:
    """The schedule of a pipeline, and this rank's part of it.

    Args:
        arguments (Arguments): Arguments of the pipeline on this rank.
        stage_ranks: Rank of each stage.

    Attributes:
        schedule (Schedule): The schedule of training now.
        trial (Trial or None): Trial of schedules that ``'auto'`` has not finished yet.
        training (RankProgram): This rank's part of the schedule; set by
            :meth:`prepare`.
        evaluation (RankProgram): This rank's part of the first schedule's forwards.

    Raises:
        ScheduleError: If the schedule does not exist for these stages.
        DisagreementError: If the schedule needs the stages on other ranks.
    """

    training: RankProgram
    evaluation: RankProgram

    def __init__(self, arguments: Arguments, stage_ranks: Sequence[int]) -> None:
        n_microbatches, when = arguments.n_microbatches, arguments.recompute
        self.trial: Trial | None = None
        if isinstance(arguments.schedule, Schedule):
            schedule = arguments.schedule
        elif arguments.schedule == AUTO:
            schedule = first_schedule(stage_ranks, n_microbatches)
            self.trial = Trial(stage_ranks, n_microbatches, when)
        else:
            n_stages, n_ranks = len(stage_ranks), len(set(stage_ranks))
            schedule = create(arguments.schedule, n_stages, n_microbatches, n_ranks)
        check_placement(schedule, stage_ranks)
        self.schedule: Schedule = recompute(schedule, when)

    def prepare(self, runner: Runner) -> None:
        """Makes the programs of a runner; once more when layers have moved.

        Args:
            runner (Runner): Runner of the programs; in a trial, it waits for the
                device.
        """
        runner.waits_for_device = self.trial is not None
        self.training = runner.program(self.schedule)
        self.evaluation = runner.program(self.schedule.forward_only())

    def note(
        self, timeline: Callable[[], Timeline], ranks: Ranks, runner: Runner
    ) -> None:
        """Records a training minibatch in the trial, if there is one.

        When the trial is over, training goes on with the schedule that was the fastest.
        All ranks must call it.

        Args:
            timeline: Returns the measured timeline of the minibatch.
            ranks (Ranks): All ranks of the pipeline; rank 0 chooses for all.
            runner (Runner): Runner of the schedule.
        """
        if self.trial is None or not self.trial.note(timeline):
            return
        self.schedule = ranks.choose(self.trial.choose)
        self.trial, runner.waits_for_device = None, False
        self.training = runner.program(self.schedule)
