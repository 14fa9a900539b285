"""Whatever is in a file: it is read, or refused in a line with the file's name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import LayerCost, Plan, Profile, schedules, simulate
from divisible.planning.coding import CodingRate
from divisible.planning.expected_costs import ExchangePlan, StagePlan
from divisible.schedules import Costs, Schedule, ScheduleError, Timeline
from tests.support.broken_files import broken
from tests.support.examples import examples

PROFILE = Profile(
    [LayerCost(0.1, 0.2, 0.3, 4, name="a"), LayerCost(0.1, 0, 0, name="b")],
    n_samples=3,
    loss=LayerCost(0.1, 0.1, 0.1),
    coding={"int8": CodingRate(2e9, 4e9)},
    scatter=0.04,
)
PLAN = Plan(
    [0, 1, 2],
    4,
    "1f1b",
    layers=["a", "b"],
    stages=[StagePlan(0.1, 0.2, 3, 4.0), StagePlan(0.1, 0.2, 3)],
    step_seconds=0.5,
    replicas=2,
    exchange_dtype="int8",
    exchange=ExchangePlan(100, 0.5, 0.1, 0.2),
    scatter=0.04,
)
GRID = str(schedules.one_f_one_b(2, 3))


def timeline():
    return simulate(Schedule.parse(GRID), Costs(1, 1, 1, activation_bytes=5))


def look_at(read):
    """Uses what was read as the commands do."""
    if isinstance(read, Timeline):
        found = read.summary(), list(read), read.critical_path, repr(read)
    else:
        found = str(read), repr(read)
    assert "\x1b" not in found[0] + found[-1]
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each class a file of it, and what is in the file."""
    folder = tmp_path_factory.mktemp("saved")
    found = {}
    for what in (PLAN, PROFILE, timeline()):
        path = folder / f"{type(what).__name__}.json"
        what.save(path)
        found[type(what)] = path, json.loads(path.read_text())
        look_at(type(what).load(path))
    return found


@pytest.mark.parametrize("cls", [Plan, Profile, Timeline])
@given(data=st.data())
@examples(40)
def test_no_file_ends_in_a_traceback(saved, cls, data):
    path, content = saved[cls]
    bad = path.with_name("bad.json")
    bad.write_bytes(data.draw(broken(content)))
    try:
        read = cls.load(bad)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{bad} is not a {cls.__name__.lower()}")
        assert "\n" not in message and len(message) < 1000
    else:
        look_at(read)
        read.save(bad)
        assert look_at(cls.load(bad)) == look_at(read)


def field_of(content, *path):
    for key in path:
        content = content[key]
    return content


MISSING = object()


@pytest.mark.parametrize(
    ("cls", "path", "value", "message"),
    [
        (Plan, ["cuts"], MISSING, "cuts is missing"),
        (Plan, ["cuts"], "ab", "cuts must be a list, not 'ab'"),
        (Plan, ["cuts", 1], True, "position 1 of cuts must be an integer, not True"),
        (Plan, ["cuts", 2], 10**30, "position 2 of cuts must be below 2**63"),
        (Plan, ["n_microbatches"], 10**30, "n_microbatches must be below 2**63"),
        (Plan, ["n_microbatches"], True, "n_microbatches must be a positive integer"),
        (Plan, ["schedule"], ["1f1b"], "schedule must be a text, not ['1f1b']"),
        (Plan, ["recompute"], {}, "recompute must be one of never"),
        (Plan, ["layers"], "ab", "layers must be a list, not 'ab'"),
        (Plan, ["layers", 1], None, "layer 1 of layers must be a text, not None"),
        (Plan, ["stages"], 3, "stages must be a list, not 3"),
        (Plan, ["stages", 1], 3, "stage 1: 3 has no fields"),
        (Plan, ["stages", 1, "memory"], MISSING, "stage 1: memory is missing"),
        (Plan, ["stages", 1, "memory"], 10**400, "stage 1: memory of a stage is 1000"),
        (
            Plan,
            ["step_seconds"],
            float("nan"),
            "step_seconds is nan: it must be finite",
        ),
        (Plan, ["step_seconds"], "1", "step_seconds is '1': it must be a number"),
        (Plan, ["bound"], -0.1, "bound is -0.1: it must be finite, not negative"),
        (Plan, ["scatter"], -0.1, "scatter is -0.1: it must be finite, not negative"),
        (
            Plan,
            ["exchange_dtype"],
            "int7",
            "exchange_dtype must be one of fp32, fp16, bf16",
        ),
        (
            Plan,
            ["exchange_dtype"],
            ["int8"],
            "exchange_dtype must be one of fp32, fp16, bf16",
        ),
        (Plan, ["error_feedback"], 1, "error_feedback must be true or false, not 1"),
        (Plan, ["exchange"], 3, "exchange: 3 has no fields"),
        (Plan, ["exchange", "seconds"], MISSING, "exchange: seconds is missing"),
        (Plan, ["exchange", "sent_bytes"], -1, "exchange: sent_bytes of exchange is"),
        (Plan, ["alternatives"], 3, "alternatives are not part of a file"),
        (Plan, ["speed"], 3, "there is no field 'speed'"),
        (Plan, ["divisible"], "profile", "it is another kind of file"),
        (Profile, ["divisible"], MISSING, "it is another kind of file"),
        (Profile, ["n_samples"], MISSING, "n_samples is missing"),
        (Profile, ["n_samples"], 10**400, "n_samples must be below 2**63"),
        (Profile, ["n_samples"], 2.5, "n_samples must be an integer, not 2.5"),
        (Profile, ["layers"], {"a": 1}, "layers must be a list, not {'a': 1}"),
        (Profile, ["layers", 1], [], "layer 1: [] has no fields"),
        (Profile, ["layers", 1, "name"], 5, "layer 1: name of a layer must be a text"),
        (
            Profile,
            ["layers", 0, "forward"],
            True,
            "layer 0: forward of a layer 'a' is T",
        ),
        (Profile, ["layers", 0, "forward"], 1e308, "forward of a layer 'a' is 1e+308"),
        (Profile, ["layers", 0, "forward"], -1, "forward of a layer 'a' is -1"),
        (Profile, ["layers", 0, "forward"], [[[]]], "forward of a layer 'a' is [[[]]]"),
        (Profile, ["layers", 0, "output_bytes"], 10**400, "layer 0: output_bytes of"),
        (Profile, ["loss", "time"], 1, "loss: there is no field 'time'"),
        (Profile, ["coding"], 3, "coding must have a rate for each dtype, not 3"),
        (Profile, ["coding", "int8"], 3, "coding in 'int8': 3 has no fields"),
        (Profile, ["coding", "int8", "encode"], 0, "encode of a rate is 0"),
        (Profile, ["coding", "int7"], {"encode": 1, "decode": 1}, "is of 'int7'"),
        (Profile, ["scatter"], "4%", "scatter is '4%': it must be a number"),
        (Profile, ["scatter"], float("inf"), "scatter is inf: it must be finite"),
        (Profile, ["machine"], None, "machine must be a text, not None"),
        (Timeline, ["otherData"], MISSING, "otherData must have the number of ranks"),
        (Timeline, ["otherData", "n_ranks"], MISSING, "otherData.n_ranks is missing"),
        (
            Timeline,
            ["otherData", "n_ranks"],
            10**12,
            "otherData.n_ranks must be from 0",
        ),
        (Timeline, ["traceEvents", 9, "tid"], 7, "tid is 7, but there are 2 ranks"),
        (Timeline, ["otherData", "name"], 1, "otherData.name must be a text, not 1"),
        (
            Timeline,
            ["otherData", "peak_memory"],
            [1],
            "otherData.peak_memory must be a",
        ),
        (Timeline, ["otherData", "bound"], "x", "otherData.bound is 'x': it must be a"),
        (
            Timeline,
            ["otherData", "n_minibatches"],
            0,
            "otherData.n_minibatches must be at least 1, not 0",
        ),
        (Timeline, ["otherData", "peak_memory", 0], "x", "otherData.peak_memory[0] is"),
        (Timeline, ["traceEvents"], MISSING, "traceEvents must be a list, not None"),
        (Timeline, ["traceEvents", 9], 7, "traceEvents[9] is 7: expected an event"),
        (Timeline, ["traceEvents", 9, "ts"], MISSING, "traceEvents[9].ts is missing"),
        (Timeline, ["traceEvents", 9, "ts"], 10**400, "traceEvents[9].ts is 1000"),
        (Timeline, ["traceEvents", 9, "dur"], -5, "events end after they start"),
        (
            Timeline,
            ["traceEvents", 9, "tid"],
            1.5,
            "traceEvents[9].tid is 1.5: expected",
        ),
        (
            Timeline,
            ["traceEvents", 9, "name"],
            [],
            "traceEvents[9].name is []: expected",
        ),
        (Timeline, ["traceEvents", 9, "cat"], "x", "category 'x' is none of"),
    ],
)
def test_the_field_is_named(saved, cls, path, value, message):
    file, content = saved[cls]
    content = json.loads(json.dumps(content))
    *above, key = path
    if value is MISSING:
        del field_of(content, *above)[key]
    else:
        field_of(content, *above)[key] = value
    bad = file.with_name("bad.json")
    bad.write_text(json.dumps(content))
    with pytest.raises(ValueError) as caught:
        cls.load(bad)
    assert str(caught.value).startswith(f"{bad} is not a {cls.__name__.lower()}")
    assert message in str(caught.value)


@pytest.mark.parametrize("cls", [Plan, Profile, Timeline])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b'{"cuts": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"cuts": [0, ' + b"9" * 5000 + b"]}",
        b'{"layers": ' + b'{"layers":' * 5000,
    ],
)
def test_what_is_no_json_of_ours(tmp_path, cls, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="file is not a ") as caught:
        cls.load(path)
    assert len(str(caught.value)) < 1000
    with pytest.raises(IsADirectoryError):
        cls.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        cls.load(tmp_path / "missing")


def test_a_timeline_without_its_memory(saved):
    path, content = saved[Timeline]
    about = dict(content["otherData"])
    del about["peak_memory"]
    bad = path.with_name("bad.json")
    bad.write_text(json.dumps({**content, "otherData": about}))
    assert Timeline.load(bad).peak_memory is None


@given(data=st.data())
@examples(40)
def test_no_grid_ends_in_a_traceback(data):
    words = GRID.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(
            st.sampled_from(["", ".", "0F0", "9F9", "1F" + "9" * 9, "1", "-1"])
            | st.integers(1, 12).map(lambda n: "9" * n)
            | st.just("9" * 5000)
            | st.text(max_size=3)
        )
    try:
        schedule = Schedule.parse(" ".join(words))
        schedule.validate()
    except ScheduleError:
        return
    look_at(schedule)
