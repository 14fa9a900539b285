"""What the page draws: grids, events, messages, facts and formulas, as JSON."""

import json

import pytest

from divisible import simulate
from divisible.explore.answer import answer, start
from divisible.explore.sources import Sources
from divisible.schedules import NAMES, Costs, Schedule, gpipe
from tests.support.explored import asked, plan_of, uneven_profile


def answered(sources=None, with_reasons=False, **fields):
    sources = sources or Sources()
    found = answer(asked(sources, **fields), sources, with_reasons)
    # The page gets it as JSON, which knows neither infinity nor NumPy's numbers.
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_has_each_action_once_and_its_text_reads_back(name):
    found = answered(schedule=name, ranks=3, microbatches=6, groups=1)
    schedule = Schedule.parse(found["text"])
    assert len(found["grid"]["text"]) == len(schedule)
    assert sorted(found["events"]["text"]) == sorted(found["grid"]["text"])
    assert found["grid"]["offsets"] == schedule.offsets.tolist()
    assert found["seconds"] == max(found["events"]["end"])
    assert found["critical"]


def test_messages_leave_with_an_action_and_arrive_later():
    found = answered(
        schedule="1f1b", ranks=3, microbatches=4, latency=0.5, message=0.25
    )
    messages = found["messages"]
    assert len(messages["text"]) == 2 * 2 * 4
    at = messages["text"].index("0F0>1")
    assert (messages["from"][at], messages["to"][at]) == (0, 1)
    assert (messages["sent"][at], messages["arrives"][at]) == (1.0, 1.75)


def test_messages_of_a_busy_link_arrive_when_they_are_waited_for():
    sources = Sources(plan_of(), [uneven_profile()])
    found = answered(sources, **vars(sources.first_question()))
    messages, events = found["messages"], found["events"]
    arrives = dict(zip(messages["text"], messages["arrives"]))
    begins = dict(zip(events["text"], events["start"]))
    for microbatch in range(4):
        assert arrives[f"0F{microbatch}>1"] <= begins[f"1F{microbatch}"] + 1e-12


def test_facts_are_those_of_the_timeline():
    facts = dict(answered(schedule="1f1b", ranks=4, microbatches=8)["facts"])
    assert facts["step"] == "33 s"
    assert facts["bubble, mean of the ranks"] == "27.3%"
    assert facts["bound"] == "27 s"
    assert facts["gap"] == "at most 22.3% above the bound"
    assert facts["most held by a rank"] == "4 microbatches in its layers"
    assert facts["messages"] == "48"


def test_several_minibatches_have_the_seconds_of_the_last_one():
    facts = dict(answered(schedule="pipedream_2bw", minibatches=4)["facts"])
    assert facts["4 minibatches"] == "105 s"
    assert facts["the last one adds"] == "24 s"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "1f1b"}, "33 s"),
        ({"schedule": "zb_h1", "backward_input": 2}, "38 s"),
        ({"schedule": "1f1b", "forward": [1, 1, 1, 2]}, "all stages take equally long"),
        ({"schedule": "1f1b", "latency": 1}, "messages take no time"),
        ({"schedule": "1f1b", "minibatches": 2}, "there is one minibatch"),
        ({"schedule": "1f1b", "groups": 2}, "there are no groups"),
        ({"schedule": "zb_v", "microbatches": 2}, "m >= 2 d"),
        ({"schedule": "v_min"}, "there is none"),
        ({"text": str(gpipe(2, 2))}, "there is none"),
    ],
)
def test_a_formula_says_its_seconds_or_when_it_holds(fields, words):
    formula = answered(**fields)["formula"]
    assert words in formula["words"]


def test_ranks_above_the_limit_are_named():
    memory = answered(schedule="1f1b", ranks=4, memory="2.5")["memory"]
    assert memory["over"] == [0, 1]
    assert memory["words"] == (
        "rank 0 holds 4 at its peak, above the limit of 2.5, and 1 more rank is above"
        " it"
    )
    assert answered(schedule="1f1b", ranks=4, memory="4")["memory"]["over"] == []


def test_layers_have_cuts_and_names():
    sources = Sources(profiles=[uneven_profile()])
    assert answered(sources, layers=True, ranks=2)["cuts"] == [0, 6, 10]
    about = json.loads(json.dumps(start(sources), allow_nan=False))
    assert about["layers"]["names"][3] == "layer 3"
    assert about["layers"]["seconds"][0] == pytest.approx(0.004)
    assert about["question"]["layers"] is True


def test_a_measured_timeline_is_given_once_and_compared():
    measured = simulate(gpipe(2, 3), Costs(1, 1, 1))
    sources = Sources(measured=measured)
    about = start(sources)
    assert about["measured"]["seconds"] == measured.makespan
    assert len(about["measured"]["events"]["rank"]) == len(measured)
    found = answered(sources, **vars(sources.first_question()))
    assert found["lost"]["text"].startswith("measured against predicted: +0")


def test_reasons_are_there_for_pages_without_a_server():
    found = answered(schedule="gpipe", ranks=2, microbatches=2, with_reasons=True)
    assert len(found["reasons"]) == len(found["events"]["text"])
    assert "reasons" not in answered()


def test_names_and_colours_follow_from_the_catalogue():
    about = start(Sources())
    assert [each["name"] for each in about["schedules"]] == list(NAMES)
    assert {"F", "B", "I", "W", "R"} <= set(about["colors"])
    assert about["measured"] is None
    assert about["layers"] is None
