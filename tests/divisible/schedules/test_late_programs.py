from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules.actions import Action, Route
from divisible.schedules.late_programs import LatePrograms
from divisible.schedules.lowering import lower
from divisible.schedules.minibatches import repeated
from divisible.schedules.pipedream import pipedream_2bw
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute


def numbered(operation, m):
    """Returns an operation with the number of its microbatch in its minibatch."""
    if isinstance(operation, Action):
        return operation._replace(microbatch=operation.microbatch % m)
    return operation._replace(action=numbered(operation.action, m))


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(2, 5),
    st.sampled_from(RECOMPUTATIONS),
    st.booleans(),
)
def test_turns_are_the_program_of_many_minibatches(d, m, k, when, has_skip):
    """Each turn sends and receives what it does in the schedule of all minibatches."""
    schedule = recompute(pipedream_2bw(d, m), when)
    routes = [Route("skip", 0, d - 1)] if has_skip and d > 1 else []
    whole = lower(repeated(schedule, k), rendezvous=False, routes=routes)
    for rank in range(d):
        programs = LatePrograms.of(schedule, rank, routes)
        turns = [programs.first, *[programs.later] * (k - 1), programs.flush]
        operations = [each for turn in turns for each in turn.operations]
        assert operations == [numbered(each, m) for each in whole[rank]]
        again = {a for turn in turns for a in turn.operations if str(a)[1] == "R"}
        for turn in turns:
            for task in turn.tasks:
                action = task.operation
                if isinstance(action, Action) and action.kind == "F":
                    assert task.is_recomputed == (action._replace(kind="R") in again)


def test_a_number_stands_for_one_microbatch_at_a_time():
    for rank in range(4):
        later = LatePrograms.of(pipedream_2bw(4, 5), rank).later
        actions = [str(each) for each in later.operations if isinstance(each, Action)]
        carried = actions[1 : 2 * (3 - rank) : 2]
        for backward in carried:
            forward = backward.replace("B", "F")
            assert actions.index(backward) < actions.index(forward)
