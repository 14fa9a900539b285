"""The schedule that a pipeline runs now, and the trial that may choose another one.

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
        arguments (Arguments): Those of this rank.
        stage_ranks: For each stage the rank that holds it.

    Attributes:
        schedule (Schedule): The one that training runs.
        trial (Trial or None): What is still to choose another one, of ``'auto'``.
        training (RankProgram): This rank's part of the schedule; once there is a
            runner.
        evaluation (RankProgram): The same, of the forwards of the first one.

    Raises:
        ScheduleError: If there is no such schedule for such stages.
        DisagreementError: If it wants them on other ranks.
    """

    training: RankProgram
    evaluation: RankProgram

    def __init__(self, arguments: Arguments, stage_ranks: Sequence[int]) -> None:
        n_microbatches, checkpoint = arguments.n_microbatches, arguments.checkpoint
        self.trial: Trial | None = None
        if isinstance(arguments.schedule, Schedule):
            schedule = arguments.schedule
        elif arguments.schedule == AUTO:
            schedule = first_schedule(stage_ranks, n_microbatches)
            self.trial = Trial(stage_ranks, n_microbatches, checkpoint)
        else:
            n_stages, n_ranks = len(stage_ranks), len(set(stage_ranks))
            schedule = create(arguments.schedule, n_stages, n_microbatches, n_ranks)
        check_placement(schedule, stage_ranks)
        self.schedule: Schedule = recompute(schedule, checkpoint)

    def prepare(self, runner: Runner) -> None:
        """Makes the programs of a runner, anew where layers have moved.

        Args:
            runner (Runner): Runs them; during a trial it waits for the device.
        """
        runner.waits_for_device = self.trial is not None
        self.training = runner.program(self.schedule)
        self.evaluation = runner.program(self.schedule.forward_only())

    def note(
        self, timeline: Callable[[], Timeline], ranks: Ranks, runner: Runner
    ) -> None:
        """Takes note of a minibatch of training, after which a trial may be over.

        Then training goes on with the schedule that is the fastest by what was
        measured. A call of all ranks.

        Args:
            timeline: Returns when it ran.
            ranks (Ranks): All of the pipeline; all go on with rank 0's choice.
            runner (Runner): Runs the schedule.
        """
        if self.trial is None or not self.trial.note(timeline):
            return
        self.schedule = ranks.choose(self.trial.choose)
        self.trial, runner.waits_for_device = None, False
        self.training = runner.program(self.schedule)
