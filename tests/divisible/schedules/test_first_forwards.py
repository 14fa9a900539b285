"""First forwards need nothing of a backward, and no rank could run one more."""

from hypothesis import given

from divisible.schedules.actions import Action
from divisible.schedules.first_forwards import first_forwards
from divisible.schedules.lowering import lower
from divisible.schedules.rank_program import RankProgram
from tests.divisible.schedules.test_lowering import lowered


def messages(operations, direction):
    return [
        operation
        for operation in operations
        if not isinstance(operation, Action) and operation.direction == direction
    ]


@given(lowered())
def test_first_forwards_are_complete_among_themselves(case):
    schedule, routes = case
    programs = lower(schedule, False, routes)
    firsts = [first_forwards(programs, rank) for rank in range(len(programs))]
    begun = [program[: each.end] for program, each in zip(programs, firsts)]
    sent = [
        (each.action, each.skip, each.peer)
        for operations in begun
        for each in messages(operations, "send")
    ]
    for rank, (operations, program) in enumerate(zip(begun, programs)):
        assert all(each.kind == "F" for each in operations if isinstance(each, Action))
        received = messages(operations, "receive")
        assert {(each.action, each.skip, rank) for each in received} <= {*sent}
        if len(operations) < len(program):
            stop = program[len(operations)]
            if isinstance(stop, Action):
                assert stop.kind != "F"
            else:
                assert stop.direction == "receive"
                assert (stop.action, stop.skip, rank) not in sent


@given(lowered())
def test_messages_that_are_not_received_are_the_next_of_their_channels(case):
    schedule, routes = case
    programs = lower(schedule, False, routes)
    for rank, program in enumerate(programs):
        first = first_forwards(programs, rank)
        tasks = RankProgram.of(schedule, rank, False, routes)
        for channel, order in tasks.receives.items():
            to_rank = [
                each.action.microbatch
                for other in range(len(programs))
                for each in messages(
                    programs[other][: first_forwards(programs, other).end], "send"
                )
                if each.peer == rank
                and (each.action.stage, each.action.kind == "F", each.skip) == channel
            ]
            mine = [
                each.action.microbatch
                for each in messages(program[: first.end], "receive")
                if (each.action.stage, each.action.kind == "F", each.skip) == channel
            ]
            assert [*order[: first.n_sent.get(channel, 0)]] == to_rank
            assert [*order[: first.n_received.get(channel, 0)]] == mine
            assert len(mine) <= len(to_rank)
