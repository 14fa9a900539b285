import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import schedules
from divisible.schedules.actions import Action, ScheduleError, Transfer, parse_operation
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from tests.support.examples import examples
from tests.support.program_validation import check_programs
from tests.support.schedules import named_schedules


def rows_of(schedule):
    return [list(row) for row in schedule.actions]


def rebuild(schedule, rows):
    return Schedule(rows, schedule.stage_ranks, schedule.n_microbatches)


def needs(action, n_stages):
    """What an action needs, written down a second time for the tests."""
    stage, kind, microbatch = action
    if kind == "F":
        return [{Action(stage - 1, "F", microbatch)}] if stage else []
    if kind == "W":
        return [{Action(stage, "I", microbatch)}]
    below = [{Action(stage, "F", microbatch)}]
    if stage + 1 < n_stages:
        below.append({Action(stage + 1, k, microbatch) for k in "BI"})
    return below


def runs_to_its_end(schedule):
    """Brute force: run whatever can run until nothing can."""
    queues = rows_of(schedule)
    done = set()
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue and all(n & done for n in needs(queue[0], schedule.n_stages)):
                done.add(queue.pop(0))
                moved = True
    return not any(queues)


def rendezvous(programs, n_stages):
    """Brute force: blocking programs finish, with every input at hand, or not."""
    programs = [list(program) for program in programs]
    known = [set() for _ in programs]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if not program:
                continue
            head = program[0]
            if isinstance(head, Action):
                if not all(n & known[rank] for n in needs(head, n_stages)):
                    return False
                known[rank].add(program.pop(0))
                moved = True
            elif head.direction == "send" and programs[head.peer]:
                other = programs[head.peer][0]
                if not isinstance(other, Transfer):
                    continue
                if other.peer == rank and other.direction == "receive":
                    if other.action != head.action or head.action not in known[rank]:
                        return False
                    known[head.peer].add(head.action)
                    program.pop(0)
                    programs[head.peer].pop(0)
                    moved = True
    return not any(programs)


@pytest.mark.parametrize("text", ["2F0", "0B12", "10I3", "7W7", "2F0>3", "1I0<12"])
def test_notation_round_trip(text):
    assert str(parse_operation(text)) == text


@pytest.mark.parametrize(
    "text", ["", "F0", "2X0", "2F", "2F0>", "2F0>a", "-1F0", "2f0"]
)
def test_notation_refuses(text):
    with pytest.raises(ScheduleError, match="2F0"):
        parse_operation(text)


def test_actions_look_like_a_list():
    schedule = schedules.gpipe(2, 2)
    row = schedule.actions[1]
    assert row == [Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), (1, "B", 1)]
    assert len(row) == 4
    assert row[-1] == Action(1, "B", 1)
    assert list(row[1:3]) == [Action(1, "F", 1), Action(1, "B", 0)]
    assert Action(1, "B", 0) in row
    assert row != [Action(1, "F", 0)]
    assert isinstance(row[0].stage, int)
    assert isinstance(row[0].microbatch, int)


def test_schedule_is_a_value():
    schedule = schedules.zero_bubble_v(2, 3)
    same = Schedule(rows_of(schedule), name="another name")
    assert same == schedule
    assert hash(same) == hash(schedule)
    assert same.stage_ranks == (0, 1, 1, 0)
    assert same.rank_stages(0) == (0, 3)
    assert schedule != schedules.zero_bubble_v(2, 4)
    with pytest.raises(ValueError, match="read-only"):
        schedule.kind[0] = 1


@pytest.mark.parametrize(
    "rows, options, message",
    [
        ([], {}, "no ranks"),
        ([["0X0"]], {}, "rank 0, position 0: '0X0'"),
        ([["0F0", 3]], {}, "rank 0, position 1: 3"),
        ([["0F0"], [(0, "F", "x")]], {}, "rank 1, position 0"),
        ([["0F0", (0, "B", 0.5)]], {}, "rank 0, position 1"),
        ([["0F0", "2F0"]], {}, "gaps"),
        ([["0F0"], ["0B0"]], {}, "stage 0 has actions on rank 0 and on rank 1"),
        ([["0F0"]], {"stage_ranks": [1]}, "stage 0 on rank 1"),
        ([["0F0", "1F0"]], {"stage_ranks": [0]}, "stage 1 does not exist"),
        ([["0F0", "0F2"]], {"n_microbatches": 2}, "microbatch 2 does not exist"),
        ([[(0, "F", -1)]], {}, "microbatch -1 does not exist"),
    ],
)
def test_malformed_schedules_are_refused(rows, options, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(rows, **options)


@examples(60)
@given(named_schedules())
def test_text_round_trip(schedule):
    text = str(schedule)
    again = Schedule.parse(text)
    assert again == schedule
    assert again.name == schedule.name
    assert str(again) == text
    forward = schedule.forward_only()
    assert Schedule.parse(str(forward)) == forward


@examples(40)
@given(named_schedules(), st.randoms(use_true_random=False))
def test_text_round_trip_of_what_cannot_run(schedule, rng):
    rows = rows_of(schedule)
    for row in rows:
        rng.shuffle(row)
    broken = rebuild(schedule, rows)
    assert Schedule.parse(str(broken)) == broken


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "a: 1 microbatch, 1 stage on rank 0\nrank 1  0F0", "rank 0 0F0"],
)
def test_parse_refuses(text):
    with pytest.raises(ScheduleError, match="expected"):
        Schedule.parse(text)


def test_large_grids_show_the_neighbourhood_of_the_fault():
    schedule = schedules.one_f_one_b(64, 64)
    rows = rows_of(schedule)
    rows[40][90], rows[40][91] = rows[40][91], rows[40][90]
    rows[40].remove(Action(40, "B", 30))
    with pytest.raises(ScheduleError) as caught:
        rebuild(schedule, rows).validate()
    text = str(caught.value)
    assert "rank 40: 40B30 (or its halves I and W) is missing" in text
    assert "!40F30!" in text
    assert len(text.splitlines()) < 30
    assert max(map(len, text.splitlines()[2:])) < 300


FAULTS = {
    "missing forward": ([["0F0", "0B0", "0B1"]], r"rank 0: 0F1 is missing"),
    "missing backward": ([["0F0", "0F1", "0B0"]], r"rank 0: 0B1 .*is missing"),
    "missing weight": ([["0F0", "0I0"]], r"rank 0: 0W0 is missing"),
    "missing input": ([["0F0", "0W0"]], r"rank 0: 0I0 is missing"),
    "twice": ([["0F0", "0F0", "0B0"]], r"rank 0: 0F0 is there 2 times"),
    "mixed": ([["0F0", "0B0", "0I0", "0W0"]], r"both whole \(B\) and in halves"),
    "backward first": ([["0B0", "0F0"]], r"rank 0: 0B0 runs before 0F0"),
    "weight first": ([["0F0", "0W0", "0I0"]], r"rank 0: 0W0 runs before 0I0"),
    "stages": ([["1F0", "0F0", "1B0", "0B0"]], r"rank 0: 1F0 runs before 0F0"),
    "back": ([["0F0", "1F0", "0B0", "1B0"]], r"rank 0: 0B0 runs before 1B0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    rows, message = FAULTS[fault]
    with pytest.raises(ScheduleError, match=message) as caught:
        Schedule(rows).validate()
    assert "\nrank 0" in str(caught.value)
    assert "!" in str(caught.value)


def test_wrong_rank_is_named():
    schedule = Schedule([["0F0", "0B0", "1F0"], ["1B0"]], [0, 1])
    message = "rank 0: 1F0 is on the wrong rank; stage 1 is held by rank 1"
    with pytest.raises(ScheduleError, match=message):
        schedule.validate()


def test_deadlock_shows_the_circle():
    schedule = Schedule([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]])
    with pytest.raises(ScheduleError) as caught:
        schedule.validate()
    assert str(caught.value).splitlines() == [
        "deadlock: 2 ranks stop for ever; these wait for each other in a circle:",
        "  rank 0 waits in 0B0 for 1B0, which rank 1 runs after 1F1;",
        "  rank 1 waits in 1F1 for 0F1, which rank 0 runs after 0B0",
        "schedule: 2 microbatches, 2 stages on ranks 0 1",
        "step        0     1     2     3     4",
        "rank 0    0F0 !0B0!   0F1   0B1     .",
        "rank 1      . !1F1!   1F0   1B0   1B1",
    ]
    with pytest.raises(ScheduleError, match="cannot be lowered"):
        lower(schedule)


@examples(100)
@given(named_schedules(), st.data())
def test_corruptions_are_caught(schedule, data):
    rows = rows_of(schedule)
    actions = [(r, k) for r, row in enumerate(rows) for k in range(len(row))]
    rank, place = data.draw(st.sampled_from(actions))
    action = rows[rank][place]
    kinds = ["drop", "duplicate", "swap"]
    if schedule.n_ranks > 1:
        kinds.append("move")
    how = data.draw(st.sampled_from(kinds))
    if how == "drop":
        if len(schedule) == 2 and action.kind == "B":
            return  # what is left is a valid forward-only schedule
        del rows[rank][place]
    elif how == "duplicate":
        rows[rank].insert(data.draw(st.integers(0, len(rows[rank]))), action)
    elif how == "move":
        del rows[rank][place]
        other = data.draw(st.integers(0, schedule.n_ranks - 2))
        other += other >= rank
        rows[other].insert(data.draw(st.integers(0, len(rows[other]))), action)
    else:
        first = Action(action.stage, "F", action.microbatch)
        second = next(
            Action(action.stage, kind, action.microbatch)
            for kind in "BI"
            if Action(action.stage, kind, action.microbatch) in rows[rank]
        )
        a, b = rows[rank].index(first), rows[rank].index(second)
        rows[rank][a], rows[rank][b] = second, first
    with pytest.raises(ScheduleError, match=r"rank \d"):
        rebuild(schedule, rows).validate()


def verdict(check):
    try:
        check()
    except ScheduleError:
        return False
    return True


@examples(150)
@given(named_schedules(4, 5), st.integers(0, 6), st.randoms(use_true_random=False))
def test_validator_agrees_with_brute_force(schedule, swaps, rng):
    rows = rows_of(schedule)
    for _ in range(swaps):
        row = rng.choice(rows)
        k = rng.randrange(len(row) - 1)
        row[k], row[k + 1] = row[k + 1], row[k]
    changed = rebuild(schedule, rows)
    assert verdict(changed.validate) == runs_to_its_end(changed)
    if runs_to_its_end(changed):
        assert rendezvous(lower(changed), changed.n_stages)
        check_programs(lower(changed))


@examples(150)
@given(named_schedules(4, 4), st.integers(0, 8), st.randoms(use_true_random=False))
def test_program_check_agrees_with_brute_force(schedule, swaps, rng):
    programs = [list(program) for program in lower(schedule)]
    for _ in range(swaps):
        program = rng.choice(programs)
        k = rng.randrange(len(program) - 1)
        program[k], program[k + 1] = program[k + 1], program[k]
    good = rendezvous(programs, schedule.n_stages)
    assert verdict(lambda: check_programs(programs)) == good
    if not swaps:
        assert good


def test_brute_force_comparison_sees_both_verdicts():
    rng = random.Random(0)
    seen = []
    for _ in range(60):
        schedule = schedules.one_f_one_b(3, 4)
        programs = [list(program) for program in lower(schedule)]
        program = rng.choice(programs)
        k = rng.randrange(len(program) - 1)
        program[k], program[k + 1] = program[k + 1], program[k]
        good = rendezvous(programs, 3)
        assert verdict(lambda programs=programs: check_programs(programs)) == good
        seen.append(good)
    assert 5 < sum(seen) < 55


@examples(60)
@given(named_schedules(), st.booleans(), st.booleans())
def test_lowered_programs(schedule, blocking, forward_only):
    if forward_only:
        schedule = schedule.forward_only()
        schedule.validate()
    programs = lower(schedule, rendezvous=blocking)
    compute = [[op for op in program if isinstance(op, Action)] for program in programs]
    assert compute == rows_of(schedule)
    # Between two ranks both sides have the messages in the same order.
    sent, received = {}, {}
    for rank, program in enumerate(programs):
        for op in program:
            if isinstance(op, Transfer) and op.direction == "send":
                sent.setdefault((rank, op.peer), []).append(op.action)
            elif isinstance(op, Transfer):
                received.setdefault((op.peer, rank), []).append(op.action)
    assert sent == received
    crossing = sum(
        schedule.stage_ranks[stage] != schedule.stage_ranks[stage + 1]
        for stage in range(schedule.n_stages - 1)
    )
    directions = 1 if forward_only else 2
    assert sum(map(len, sent.values())) == (
        crossing * schedule.n_microbatches * directions
    )
    if blocking:
        check_programs(programs)
        assert rendezvous(programs, schedule.n_stages)
    for program in programs:
        for before, op in zip(program, program[1:]):
            if not blocking and isinstance(op, Transfer) and op.direction == "send":
                assert before == op.action


def test_receives_stand_late_when_sends_do_not_block():
    # The gradient of microbatch 0 is there long before rank 0 needs it.
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]]
    rows.append(["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"])
    late = lower(Schedule(rows), rendezvous=False)[0]
    assert " ".join(map(str, late)) == (
        "0F0 0F0>1 0F1 0F1>1 0F2 0F2>1 1B0<1 0B0 1B1<1 0B1 1B2<1 0B2"
    )
    # Needed in another order than sent: the first one is taken with the second.
    rows[0] = ["0F0", "0F1", "0F2", "0B1", "0B0", "0B2"]
    late = lower(Schedule(rows), rendezvous=False)[0]
    assert " ".join(map(str, late)).endswith("1B0<1 1B1<1 0B1 0B0 1B2<1 0B2")


def test_programs_with_impossible_peers_are_refused():
    program = [Action(0, "F", 0), Transfer(Action(0, "F", 0), 5, "send")]
    with pytest.raises(ScheduleError, match="names rank 5"):
        check_programs([program])
    crossed = ["0F0 0F1 0F1>1 0F0>1", "0F0<0 1F0 0F1<0 1F1"]
    with pytest.raises(ScheduleError, match="one order on both"):
        check_programs([[parse_operation(t) for t in ops.split()] for ops in crossed])
