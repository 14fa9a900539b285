"""The contents of the page's controls: defaults, checks, schedules and costs."""

import pytest

from divisible.explore.question import MOST_ACTIONS, Question
from divisible.schedules import NAMES, ScheduleError, gpipe


@pytest.mark.parametrize("name", NAMES)
def test_each_schedule_of_the_catalogue_can_be_asked_for(name):
    question = Question(name, ranks=2, microbatches=4)
    assert question.made().n_ranks == 2
    assert Question.from_json(question.to_json()) == question


def test_chunks_count_where_a_schedule_takes_any():
    assert Question("interleaved", ranks=2, chunks=3).made().n_stages == 6
    assert Question("zb_v", ranks=2, chunks=3).made().n_stages == 4


def test_a_text_has_sizes_of_its_own():
    question = Question(ranks=7).with_text(gpipe(2, 3))
    assert question.made() == gpipe(2, 3)


def test_one_number_is_for_the_layers_of_a_rank_and_several_for_stages():
    question = Question("zb_v", ranks=2, microbatches=2, forward=2.0)
    costs = question.costs(question.made())
    assert costs.forward == 1.0
    each = Question("zb_v", ranks=2, forward=[1, 2, 3, 4])
    costs = each.costs(each.made())
    assert list(costs.forward) == [1, 2, 3, 4]
    assert costs.backward_input == 0.5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "1f2b"}, "no schedule '1f2b'; choose one of"),
        ({"ranks": 0}, "ranks must be 1 or more"),
        ({"ranks": 1.5}, "ranks must be an integer"),
        ({"ranks": True}, "ranks must be an integer"),
        ({"microbatches": 10**9}, f"the page draws {MOST_ACTIONS}"),
        ({"forward": -1}, "forward is -1"),
        ({"forward": "fast"}, "forward is 'fast'"),
        ({"forward": [1, "x"]}, "forward of stage 1"),
        ({"latency": float("nan")}, "latency is nan"),
        ({"text": 3}, "text must be a text"),
        ({"layers": 1}, "layers must be true or false"),
        ({"cuts": [0, "a"]}, "a cut must be an integer"),
        ({"colour": "red"}, "no field 'colour'"),
        (None, "has no fields"),
    ],
)
def test_wrong_fields_are_refused_with_their_names(fields, words):
    with pytest.raises(ValueError) as caught:
        Question.from_json(fields)
    assert words in str(caught.value)


def test_a_long_text_is_refused_before_it_is_simulated():
    text = str(gpipe(2, 4))
    with pytest.raises(ValueError, match="fewer ranks"):
        Question(text=text, minibatches=MOST_ACTIONS).made()


def test_times_of_another_number_of_stages_are_refused():
    question = Question(ranks=3, forward=[1, 2])
    with pytest.raises(ValueError, match="2 numbers, but there are 3 stages"):
        question.costs(question.made())


def test_a_text_that_cannot_run_is_refused_in_the_validators_words():
    text = "mine: 1 microbatch, 1 stage on rank 0\nrank 0 0B0 0F0"
    with pytest.raises(ScheduleError, match="0B0 runs before 0F0"):
        Question(text=text).made()


def test_a_limit_is_a_number_or_with_layers_a_size():
    assert Question(memory="3.5").limit() == 3.5
    assert Question(memory="2KiB", layers=True).limit() == 2048
    assert Question(memory=" ").limit() is None
    with pytest.raises(ValueError, match="number of microbatches"):
        Question(memory="2KiB").limit()
