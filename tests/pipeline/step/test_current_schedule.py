"""The schedule that a pipeline runs now."""

import types

import chainer.functions as F
import chainer.links as L
import pytest

from divisible import Divisible
from divisible.communication.errors import DisagreementError
from divisible.schedules import Costs, gpipe
from divisible.schedules.automatic import N_TIMED, N_WARM
from divisible.schedules.simulator import simulate
from pipeline.start.arguments import Arguments
from pipeline.step.current_schedule import CurrentSchedule

RANKS = types.SimpleNamespace(choose=lambda choice: choice())


class Programs:
    """Stands for a runner; the program of a schedule is its text."""

    waits_for_device = None

    def program(self, schedule):
        return str(schedule)


CUTS = [0, 1, 2, 3]


def arguments(schedule, recompute="never"):
    stage = Divisible(L.Linear(2, 2))
    given = [stage], 4, schedule, F.softmax_cross_entropy, None, "mpi", None, 300.0
    return Arguments(*given, recompute, 0, True, None, "memory", "float32", "none", 1)


def uneven(schedule):
    """The timeline of stages of which the later ones have slow weight gradients."""
    return simulate(schedule, Costs([1.0] * 3, [1.0] * 3, [1.0, 4.0, 4.0], [0.1] * 2))


def test_a_named_schedule_stays():
    current, runner = CurrentSchedule(arguments("gpipe"), [0, 1], CUTS), Programs()
    current.prepare(runner)
    current.note(pytest.fail, RANKS, runner)
    assert current.schedule == gpipe(2, 4) and current.trial is None
    assert current.training == str(gpipe(2, 4))
    assert current.evaluation == str(gpipe(2, 4).forward_only())
    assert runner.waits_for_device is False


def test_a_trial_ends_with_the_fastest():
    current, runner = CurrentSchedule(arguments("auto"), [0, 1, 2], CUTS), Programs()
    current.prepare(runner)
    first = current.schedule
    assert runner.waits_for_device
    for i in range(N_WARM + N_TIMED):
        assert current.trial is not None and current.schedule is first, i
        current.note(lambda: uneven(first), RANKS, runner)
    assert current.trial is None and not runner.waits_for_device
    assert uneven(current.schedule).makespan < uneven(first).makespan
    assert current.training == str(current.schedule)
    current.note(pytest.fail, RANKS, runner)


def test_programs_are_made_anew_for_another_runner():
    current, runner = CurrentSchedule(arguments("auto"), [0, 1], CUTS), Programs()
    current.prepare(Programs())
    current.prepare(runner)
    assert runner.waits_for_device and current.training == str(current.schedule)


def test_recomputation_is_part_of_the_schedule():
    current = CurrentSchedule(arguments("1f1b", recompute="always"), [0, 1], CUTS)
    assert "R" in str(current.schedule)


def test_stages_on_other_ranks_are_refused():
    with pytest.raises(DisagreementError, match="wants the stages on the ranks"):
        CurrentSchedule(arguments(gpipe(2, 4)), [1, 0], CUTS)
