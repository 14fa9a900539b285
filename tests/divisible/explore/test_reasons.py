"""Why a rank waits: messages, actions before, and the ends of ranks."""

import pytest

from divisible.explore.reasons import reasons, why
from divisible.explore.sources import Sources
from divisible.schedules import NAMES
from tests.support.explored import asked, plan_of, uneven_profile


def test_a_wait_names_the_message_its_sender_and_its_time():
    simulation = asked(schedule="1f1b", ranks=4, microbatches=8, latency=0.25)
    text, chain = why(simulation, rank=2, seconds=4.6)
    assert text.startswith(
        "Rank 2 waits for 2.5 s, from 4.5 s to 7 s, for the message 3B0>2. Rank 3 sends"
        " it when it has run 3B0, at 6.75 s. The message takes 250 ms."
    )
    names = [str(simulation.timeline[event].what) for event in chain]
    assert names == ["2B0", "3B0", "3F0", "2F0", "1F0", "0F0"]


def test_an_action_that_follows_another_at_once_did_not_wait():
    simulation = asked(schedule="gpipe", ranks=2, microbatches=2)
    assert "does not wait for 0F1" in why(simulation, 0, 1.5).text


def test_after_its_last_action_a_rank_waits_for_the_end_of_the_step():
    simulation = asked(schedule="gpipe", ranks=2, microbatches=2)
    text, chain = why(simulation, rank=1, seconds=8.9)
    assert "no more actions" in text
    assert "0B1 of rank 0, at 9 s" in text
    assert [str(simulation.timeline[e].what) for e in chain] == ["0B1"]


@pytest.mark.parametrize(
    ("rank", "end"),
    [
        (8, "1F0 waits for 0F0. 0F0 is the first action of rank 0."),
        (9, "2F0 waits for 1F0. Earlier waits are left out."),
    ],
)
def test_a_long_answer_ends_with_words(rank, end):
    text, chain = why(asked(ranks=10, microbatches=2), rank, 0.5)
    assert text.endswith(end)
    assert len(chain) == 9


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no rank 4: there are 4"):
        why(asked(), 4, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_each_chain_goes_back_in_time_to_the_cause(name):
    simulation = asked(schedule=name, ranks=3, microbatches=6, latency=0.2)
    timeline = simulation.timeline
    found = reasons(simulation)
    assert len(found) == len(timeline)
    for event, (text, chain) in enumerate(found):
        assert text
        assert chain[0] == event
        for later, earlier in zip(chain, chain[1:]):
            # What is waited for ends before, and at most a message later.
            gap = timeline.start[later] - timeline.end[earlier]
            assert -1e-9 <= gap <= 0.2 + 1e-9


def test_a_link_that_is_busy_is_named():
    # 1 MB/s for 4000 bytes: a message takes 4 ms and waits for the one before.
    sources = Sources(plan_of(), [uneven_profile()])
    fields = {"ranks": 2, "microbatches": 16, "layers": True}
    texts = [r.text for r in reasons(asked(sources, schedule="gpipe", **fields))]
    assert any("The message takes" in text for text in texts)
