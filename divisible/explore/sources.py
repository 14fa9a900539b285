"""The files that the page shows: plan, profiles of layers, timeline, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from divisible.explore.measured import question_of
from divisible.explore.question import Question
from divisible.minibatch import microbatch_sizes
from divisible.planning.cost_model import CostModel
from divisible.planning.interpolation import interpolate, sort_profiles
from divisible.planning.partition import partition
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.planning.stage_costs import stage_model
from divisible.records import shown
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline

# Parts of a plan that the page has no controls for.
_NOT_SIMULATED = (
    "replicas",
    "recompute",
    "recomputed",
    "stage_groups",
    "hold_in",
    "hold_dtype",
    "streamed",
    "messages",
)


@dataclass(frozen=True, eq=False)
class Sources:
    """The contents of the files that were read.

    Attributes:
        plan: A plan; its machine and samples count, and the page begins with it.
        profiles: Profiles of the layers, at different sizes of microbatch.
        measured: The timeline of a measured step.
        schedule: A schedule of its own, with which the page begins.

    Raises:
        ValueError: If there is a plan without profiles, the profiles are of another
            model, or the timeline is of several minibatches.
    """

    plan: Plan | None = None
    profiles: Sequence[Profile] = ()
    measured: Timeline | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.profiles:
            object.__setattr__(self, "profiles", tuple(sort_profiles(self.profiles)))
        elif self.plan is not None:
            raise ValueError("a plan needs the profiles of its layers: give them, too")
        if self.plan is not None and self.plan.n_layers != len(self.profiles[0]):
            raise ValueError(
                f"the plan {self.plan.cuts} is for a model of {self.plan.n_layers}"
                f" layers, but the profile is of one of {len(self.profiles[0])}"
            )
        if self.measured is not None and self.measured.n_minibatches > 1:
            raise ValueError(
                f"the timeline is of {self.measured.n_minibatches} minibatches: give"
                f" one of a single minibatch"
            )

    @property
    def left_out(self) -> str:
        """A sentence about what the plan has and the page does not simulate, or none.

        Example:
            >>> Sources().left_out
            ''
        """
        plan = self.plan
        if plan is None:
            return ""
        plain = Plan(plan.cuts, stages_per_rank=plan.stages_per_rank)
        used = [
            f"{name}={getattr(plan, name)!r}"
            for name in _NOT_SIMULATED
            if getattr(plan, name) != getattr(plain, name)
        ]
        sentences = []
        if used:
            parts = ", ".join(used)
            sentences.append(
                f"The page does not simulate what the plan has of {parts}."
            )
        if plan.schedule is not None and plan.schedule not in CATALOGUE:
            sentences.append(
                f"The schedule of the plan, {shown(plan.schedule)}, is not in the"
                f" catalogue: draw its text on the page."
            )
        return " ".join(sentences)

    def model(self, schedule: Schedule) -> CostModel:
        """Returns the costs of the layers in a schedule's stages.

        With a plan, a minibatch has the plan's samples, and ranks and links are those
        of its machine. Without one, microbatches have the size of the largest profile.

        Args:
            schedule: A valid schedule.

        Raises:
            ValueError: If there is no profile, the minibatch has too few samples, or
                the machine of the plan too few ranks.
        """
        if not self.profiles:
            raise ValueError(
                "there is no profile: start divisible explore with the file of one"
            )
        m, plan = schedule.n_microbatches, self.plan
        conditions = None if plan is None else plan.conditions
        if conditions is None:
            return stage_model([self.profiles[-1]] * m, schedule)
        replicas = plan.replicas
        batch = conditions.minibatch(plan.n_microbatches or m)
        sizes = microbatch_sizes(-(-batch // replicas), m)
        by_size = {size: interpolate(self.profiles, size) for size in {*sizes}}
        machine = conditions.machine
        return stage_model(
            [by_size[size] for size in sizes],
            schedule,
            machine.network,
            machine.speeds,
        )

    def cuts(self, question: Question, schedule: Schedule) -> list[int]:
        """Returns the cuts of a question, or those of even stages.

        Raises:
            ValueError: If the cuts do not fit the layers and stages.
        """
        n_layers = len(self.profiles[0])
        if question.cuts is None:
            return partition(
                self.profiles[-1], schedule.n_stages, schedule=schedule
            ).cuts
        cuts = Plan(question.cuts).cuts
        if len(cuts) != schedule.n_stages + 1 or cuts[-1] != n_layers:
            raise ValueError(
                f"the cuts {cuts} make {len(cuts) - 1} stages of {cuts[-1]} layers, but"
                f" there are {schedule.n_stages} stages of {n_layers}"
            )
        return cuts

    def first_question(self) -> Question:
        """Returns the question with which the page begins.

        Raises:
            ValueError: If the page cannot draw the schedule of the plan or timeline.
        """
        question = self._first_of_the_others()
        if self.schedule is None:
            return question
        cuts = question.cuts
        if cuts is not None and len(cuts) != self.schedule.n_stages + 1:
            cuts = None
        return replace(
            question,
            text=str(self.schedule),
            ranks=self.schedule.n_ranks,
            microbatches=self.schedule.n_microbatches,
            groups=1,
            cuts=cuts,
        )

    def _first_of_the_others(self) -> Question:
        """Returns the first question without the schedule."""
        if self.measured is not None and self.plan is None and not self.profiles:
            return question_of(self.measured)
        if self.plan is None:
            n_layers = len(self.profiles[0]) if self.profiles else 4
            return Question(ranks=min(4, n_layers), layers=bool(self.profiles))
        plan = self.plan
        n_ranks = plan.n_stages // plan.stages_per_rank
        schedule = plan.schedule
        if schedule not in CATALOGUE:
            schedule = "1f1b" if plan.stages_per_rank == 1 else "interleaved"
        return Question(
            schedule,
            ranks=n_ranks,
            chunks=plan.stages_per_rank,
            microbatches=plan.n_microbatches or 8,
            groups=plan.weight_groups,
            layers=True,
            cuts=tuple(plan.cuts),
        )
