"""What ranks say of a plan, compared: a pure function."""

import pickle

import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from divisible.communication.errors import DisagreementError
from pipeline.start.agreement import Refusal
from pipeline.start.plan_agreement import (
    PlanFacts,
    PlanWords,
    agree_on_plan,
    from_rank_0,
)

PLAN = Plan([0, 1, 2], 4, "1f1b")


def words(plan=PLAN, kind="a Plan", model=(abs, abs), hold_in=None):
    settings = {"plan": kind}
    facts = PlanFacts.of(plan, settings, hold_in, "host", Divisible(*model))
    return PlanWords.of(facts)


def test_words_travel():
    """To a rank without a plan they are a refusal."""
    sent = pickle.loads(pickle.dumps(words()))
    assert isinstance(sent, Refusal) and "it is given plan=" in sent
    assert sent.facts.plan == PLAN


def test_the_plan_of_all():
    facts = agree_on_plan([words(), words(hold_in="disk")])
    assert facts[0].plan == PLAN and facts[1].hold_in == "disk"
    # A file, which rank 0 alone reads.
    facts = agree_on_plan([words(kind="a file"), words(None, kind="a file")])
    assert facts[0].plan == PLAN


@pytest.mark.parametrize(
    "said, message",
    [
        (Refusal("ValueError: no"), "rank 1 refuses to start: ValueError: no"),
        (object(), "rank 1 refuses to start: it is given no plan"),
        (words(kind="'auto'"), "plan differs between rank 0 and rank 1"),
        (words(model=(abs, max)), "different models: layer 1 is abs"),
        (
            words(Plan([0, 1, 2], 8, "1f1b")),
            "different plans: n_microbatches is 4 on one and 8 on the other. Let one",
        ),
    ],
)
def test_what_does_not_go_together(said, message):
    with pytest.raises(DisagreementError, match=message):
        agree_on_plan([words(), said])


def test_rank_0_makes_something():
    assert from_rank_0(MPI.COMM_SELF, lambda goes_on: goes_on() or 3, 10) == 3
    with pytest.raises(KeyError):
        from_rank_0(MPI.COMM_SELF, lambda goes_on: {}["a"], 10)
