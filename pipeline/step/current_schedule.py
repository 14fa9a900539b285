"""The schedule that a pipeline runs now, and the trial of other schedules.

::

    minibatch           1    2    3    4    5    6 ...
    schedule='1f1b'     1f1b --------------------------->
    schedule='auto'     for equal stages    the fastest >
                        '--- the trial ---'

With ``weight_groups='auto'`` a trial of the size of groups comes after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from divisible.free_memory import claims, refusal
from divisible.schedules.automatic import AUTO, ScheduleTrial, first_schedule
from divisible.schedules.catalogue import create
from divisible.schedules.first_forwards import FirstForwards
from divisible.schedules.group_trial import GroupTrial
from divisible.schedules.groups import group_weights, weight_group_sizes
from divisible.schedules.rank_program import RankProgram
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.schedules.stage_groups import group_stages
from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.stages.stage_groups import check_groups
from pipeline.start.agreement import check_placement
from pipeline.start.arguments import Arguments
from pipeline.step.runner import Runner


class CurrentSchedule:
    """The schedule of a pipeline, and this rank's part of it.

    Args:
        arguments (Arguments): Arguments of the pipeline on this rank.
        stage_ranks: Rank of each stage.
        cuts: Cuts of the model.

    Attributes:
        schedule (Schedule): The schedule of training now.
        weight_groups (int): Number of microbatches in a group of weight gradients.
        trial (Trial, GroupTrial or None): Trial that ``'auto'`` has not finished yet.
        training (RankProgram): This rank's part of the schedule; set by
            :meth:`prepare`.
        evaluation (RankProgram): This rank's part of the first schedule's forwards.

    Raises:
        ScheduleError: If the schedule does not exist for these stages.
        DisagreementError: If the schedule needs the stages on other ranks.
        ValueError: If a stage with groups of microbatches carries states.
    """

    training: RankProgram
    evaluation: RankProgram
    _first: FirstForwards | None = None

    def __init__(
        self, arguments: Arguments, stage_ranks: Sequence[int], cuts: Sequence[int]
    ) -> None:
        n_microbatches, when = arguments.n_microbatches, arguments.recompute
        self.trial: ScheduleTrial | GroupTrial | None = None
        groups = arguments.weight_groups
        self._tries_groups = groups == AUTO
        groups = 1 if self._tries_groups else groups
        if isinstance(arguments.schedule, Schedule):
            schedule = arguments.schedule
        elif arguments.schedule == AUTO:
            schedule = first_schedule(stage_ranks, n_microbatches)
            self.trial = ScheduleTrial(stage_ranks, n_microbatches, when, groups)
        else:
            n_stages, n_ranks = len(stage_ranks), len(set(stage_ranks))
            schedule = create(arguments.schedule, n_stages, n_microbatches, n_ranks)
            schedule = group_stages(schedule, arguments.stage_groups or 1)
        check_placement(schedule, stage_ranks)
        check_groups(schedule, cuts, arguments.stages[0].carried_states)
        self.schedule: Schedule = recompute(schedule, when)
        # Groups that a user wrote into a schedule stay as they are.
        if groups > 1:
            self.schedule = group_weights(self.schedule, groups)
        self.weight_groups = groups
        if isinstance(arguments.schedule, Schedule) and groups == 1:
            self.weight_groups = max(weight_group_sizes(schedule))
        if self.trial is None and self._tries_groups:
            self._try_groups()

    def prepare(self, runner: Runner) -> None:
        """Makes the programs of a runner; once more when layers have moved.

        Args:
            runner (Runner): Runner of the programs; in a trial, it waits for the
                device.
        """
        self._prepare_training(runner)
        self.evaluation = runner.program(self.schedule.forward_only())

    def first_forwards(self, runner: Runner) -> FirstForwards:
        """Returns this rank's first forwards of a training minibatch.

        Args:
            runner (Runner): Runner of the schedule.
        """
        if self._first is None:
            self._first = runner.first_forwards(self.schedule)
        return self._first

    def note(
        self, timeline: Callable[[], Timeline], ranks: Ranks, runner: Runner
    ) -> None:
        """Records a training minibatch in the trial, if there is one.

        When the trial is over, training goes on with what was the fastest. All ranks
        must call it.

        Args:
            timeline: Returns the measured timeline of the minibatch.
            ranks (Ranks): All ranks of the pipeline; rank 0 chooses for all.
            runner (Runner): Runner of the schedule.
        """
        trial = self.trial
        if trial is None or not trial.note(timeline):
            return
        if isinstance(trial, GroupTrial):
            if not _has_larger_groups(trial, ranks, runner):
                self.trial = None
            self.schedule, self.weight_groups = trial.schedule, trial.size
        else:
            self.trial = None
            self.schedule = ranks.choose(trial.choose)
            if self._tries_groups:
                self._try_groups()
        self._prepare_training(runner)

    def _prepare_training(self, runner: Runner) -> None:
        runner.waits_for_device = self.trial is not None
        runner.measures_pending = isinstance(self.trial, GroupTrial)
        self.training, self._first = runner.program(self.schedule), None

    def _try_groups(self) -> None:
        """Begins the trial of sizes of groups, if the schedule has no groups yet."""
        self._tries_groups = False
        if self.weight_groups == 1:
            self.trial = GroupTrial(self.schedule)


def _has_larger_groups(trial: GroupTrial, ranks: Ranks, runner: Runner) -> bool:
    """Continues a trial with larger groups, or with the fastest size at the end.

    Returns:
        Whether there are larger groups to try, for which all ranks have memory.
    """
    larger, fastest = ranks.choose(lambda: (trial.next_size(), trial.fastest()))
    trial.size, goes_on = fastest, larger is not None
    if goes_on:
        more = float(trial.pending_more(larger)[ranks.rank])
        mine = claims(int(more * runner.pending_bytes))
        with ranks.calls.made("agree"):
            goes_on = refusal(ranks.all_gather(mine, "to weigh groups")) is None
    if goes_on:
        trial.size = larger
    return goes_on
