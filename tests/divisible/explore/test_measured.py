"""Measured timelines: their schedule, their times, and the time that they lost."""

import pytest

from divisible import simulate
from divisible.explore.measured import lost_time, question_of, schedule_of
from divisible.explore.sources import Sources
from divisible.schedules import NAMES, Costs, ScheduleError, Timeline, create, gpipe
from tests.support.explored import asked


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"pipedream_2bw"}))
def test_the_schedule_of_a_timeline_is_the_one_that_ran(name):
    per_rank = create(name, 4, 4).n_stages // create(name, 4, 4).n_ranks
    schedule = create(name, 2 * per_rank, 4, 2)
    measured = simulate(schedule, Costs(1.0, 1.5, 0.5, latency=0.1))
    assert schedule_of(measured) == schedule


def test_the_question_of_a_timeline_predicts_it():
    schedule = gpipe(3, 4)
    costs = Costs([1.0, 2.0, 1.5], [1, 1, 3], [1, 1, 3])
    measured = simulate(schedule, costs)
    question = question_of(measured)
    assert question.forward == pytest.approx((1.0, 2.0, 1.5))
    assert question.backward_input == pytest.approx((1, 1, 3))
    sources = Sources(measured=measured)
    assert sources.first_question() == question
    predicted = asked(sources, **vars(question)).timeline
    assert predicted.makespan == pytest.approx(measured.makespan)


def test_lost_time_has_its_causes_by_rank():
    predicted = Timeline([(0, "0F0", 0, 2), (1, "1F0", 2, 4)])
    measured = Timeline(
        [(0, "0F0", 0, 3), (1, "0F0<0", 0, 3, "wait"), (1, "1F0", 3, 6)]
    )
    lost = lost_time(measured, predicted)
    assert "+2 s: computing +1" in lost["text"]
    assert [sum(row) for row in lost["lost"]] == pytest.approx([2, 2])
    assert len(lost["causes"]) == len(lost["lost"][0])


def test_another_schedule_than_the_measured_one_is_named():
    measured = simulate(gpipe(2, 2), Costs(1, 1, 1))
    lost = lost_time(measured, simulate(gpipe(2, 3), Costs(1, 1, 1)))
    assert "is not in the measured timeline" in lost["text"]
    assert "lost" not in lost


def test_a_timeline_without_a_whole_minibatch_is_refused():
    with pytest.raises(ScheduleError, match="is missing"):
        question_of(Timeline([(0, "0F0", 0, 1), (0, "0F1", 1, 2), (0, "0B1", 2, 3)]))


def test_a_timeline_of_several_minibatches_is_refused():
    measured = simulate(gpipe(2, 2), Costs(1, 1, 1), n_minibatches=2)
    with pytest.raises(ValueError, match="of 2 minibatches"):
        Sources(measured=measured)
