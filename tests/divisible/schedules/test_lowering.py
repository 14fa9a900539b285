"""Messages over skip connections between stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules import interleaved, one_f_one_b
from divisible.schedules.actions import Action, Route, ScheduleError, Transfer
from divisible.schedules.lowering import lower
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute
from tests.support.program_validation import check_programs
from tests.support.schedules import named_schedules


@st.composite
def lowered(draw):
    schedule = draw(named_schedules(4, 6, max_chunks=3))
    if draw(st.booleans()):
        schedule = recompute(schedule, draw(st.sampled_from(RECOMPUTATIONS)))
    elif draw(st.booleans()):
        schedule = schedule.forward_only()
    stages = st.integers(0, schedule.n_stages - 1)
    pairs = draw(st.lists(st.tuples(stages, stages).filter(lambda p: p[0] < p[1])))
    routes = [Route(f"skip{k}", *pair) for k, pair in enumerate(pairs)]
    return schedule, routes


@given(lowered())
def test_blocking_messages_do_not_deadlock(case):
    schedule, routes = case
    check_programs(lower(schedule, True, routes), routes)


@given(lowered(), st.booleans())
def test_each_message_is_sent_once_and_received_once(case, rendezvous):
    schedule, routes = case
    programs = lower(schedule, rendezvous, routes)
    ends = {"send": {}, "receive": {}}
    for rank, program in enumerate(programs):
        for operation in program:
            if isinstance(operation, Transfer):
                key = operation.action, operation.skip
                pair = (rank, operation.peer)
                assert key not in ends[operation.direction]
                ends[operation.direction][key] = pair
    assert ends["send"] == {key: pair[::-1] for key, pair in ends["receive"].items()}
    ranks = schedule.stage_ranks
    there = {(a.stage, a.kind, a.microbatch) for row in schedule.actions for a in row}
    expected = set()
    for name, source, target in routes:
        if ranks[source] != ranks[target]:
            for microbatch in range(schedule.n_microbatches):
                expected.add((Action(source, "F", microbatch), name))
                for kind in "BI":
                    if (target, kind, microbatch) in there:
                        expected.add((Action(target, kind, microbatch), name))
    assert {key for key in ends["send"] if key[1]} == expected


@given(lowered())
def test_what_is_received_late_is_there_when_it_is_needed(case):
    schedule, routes = case
    ranks = schedule.stage_ranks
    for rank, program in enumerate(lower(schedule, False, routes)):
        received = set()
        for operation in program:
            if isinstance(operation, Transfer):
                if operation.direction == "receive":
                    action, skip = operation.action, operation.skip
                    received.add((action.stage, action.kind == "F", action[2], skip))
                continue
            stage, kind, microbatch = operation
            for name, source, target in routes:
                forward = kind == "F" and stage == target
                back = kind in "BI" and stage == source
                other = source if forward else target
                if (forward or back) and ranks[other] != rank:
                    assert (other, forward, microbatch, name) in received


def test_two_messages_of_one_action_to_one_rank():
    """On one rank the neighbour's result and the skip's, for two of its stages."""
    programs = lower(interleaved(2, 2, 1), routes=[Route("a", 0, 3)])
    assert " ".join(map(str, programs[0][:4])) == "0F0 0F0>1 0F0.a>1 1F0<1"
    assert " ".join(map(str, programs[1][:4])) == "0F0<0 0F0.a<0 1F0 1F0>0"


def test_a_missing_skip_is_found():
    routes = [Route("a", 0, 2)]
    programs = lower(one_f_one_b(3, 1), True, routes)
    bare = [
        [op for op in program if op not in without(program)] for program in programs
    ]
    with pytest.raises(ScheduleError, match="2F0 runs before .* 0F under the name 'a'"):
        check_programs(bare, routes)


def without(program):
    return [op for op in program if isinstance(op, Transfer) and op.skip]


@pytest.mark.parametrize("text", ["0F0.a>3", "12B7.long-name<0"])
def test_messages_are_written_and_read(text):
    assert str(Transfer.parse(text)) == text
