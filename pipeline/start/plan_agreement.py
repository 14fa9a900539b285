"""The plans that ranks are given, compared before they start.

Each rank says which plan it is given, and what besides; it gets what all say::

    rank 0   plan='auto', file found ---.           .--->  rank 0's plan
    rank 1   plan='auto' ---------------+--> all ---+--->  rank 0's plan
    rank 2   refuses: no such machine --'           '--->  its own error; others name it

A plan in a file, or one that is still to be made, is rank 0's for all. Where a rank is
given no plan it takes what others say of theirs for the reason why they do not start,
and they see that it says something else.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from mpi4py import MPI

from divisible import Divisible
from divisible.communication.attempts import words_of
from divisible.communication.collectives import broadcast_object
from divisible.communication.errors import DisagreementError
from divisible.planning.plan import Plan
from divisible.skips import Skip
from divisible.ties import SharedState, Tie
from pipeline.start.agreement import Refusal, compare_models, compare_settings

T = TypeVar("T")
# How often rank 0 says that it is still at it, in parts of what the others wait.
_SIGNS_OF_LIFE = 4


class PlanFacts(NamedTuple):
    """The facts that a rank tells the others of its plan.

    Attributes:
        plan: The plan, as far as this rank knows it.
        settings: Arguments that must be equal on all ranks, as texts by their names.
        hold_in: Where microbatches are to wait on this rank; ``None`` if not given.
        host: The name of the host.
        model_layers: A line of text for each layer of the model.
        skips: Its skip connections.
        ties: The parameters that several of its layers use.
        shared_states: Other states that several of its layers share.
    """

    plan: Plan | None
    settings: Mapping[str, str]
    hold_in: str | None
    host: str
    model_layers: Sequence[str]
    skips: Sequence[Skip]
    ties: Sequence[Tie]
    shared_states: Sequence[SharedState]

    @classmethod
    def of(
        cls,
        plan: Plan | None,
        settings: Mapping[str, str],
        hold_in: str | None,
        host: str,
        model: Divisible,
    ) -> PlanFacts:
        """Returns the facts of this rank's model and plan."""
        if plan is not None:
            # Others have no use for what was not chosen.
            plan = dataclasses.replace(plan, alternatives=())
        return cls(
            plan,
            settings,
            hold_in,
            host,
            model.model_layers,
            model.skips,
            model.ties,
            model.shared_states,
        )


class PlanWords(Refusal):
    """A rank's words on its plan; to a rank without one, a refusal to start.

    Attributes:
        facts (PlanFacts): The facts for ranks with a plan.
    """

    facts: PlanFacts

    @classmethod
    def of(cls, facts: PlanFacts) -> PlanWords:
        """Returns the words for some facts."""
        words = cls("it is given plan=, which not all ranks are: give it on all")
        words.facts = facts
        return words


def agree_on_plan(said: Sequence[Any]) -> list[PlanFacts]:
    """Compares the words of all ranks.

    Args:
        said: By all ranks, in their order: :class:`PlanWords`, or a ``Refusal``, or
            what a rank says that starts without a plan.

    Returns:
        The facts of all ranks; those of rank 0 have the plan of all, if it knows it.

    Raises:
        DisagreementError: If a rank refuses or has no plan, or plans, models or what
            is given besides differ.
    """
    for rank, word in enumerate(said):
        if not isinstance(word, PlanWords):
            why = word if isinstance(word, Refusal) else "it is given no plan"
            raise DisagreementError(f"rank {rank} refuses to start: {why}")
    facts = [word.facts for word in said]
    compare_models(facts)
    compare_settings([each.settings for each in facts])
    for rank, each in enumerate(facts):
        if each.plan is not None and each.plan != facts[0].plan:
            raise DisagreementError(
                f"rank 0 and rank {rank} are given different plans:"
                f" {_difference(facts[0].plan, each.plan)}. Let one rank make the plan"
                f" and tell it to all, or give the name of a file, or 'auto'"
            )
    return facts


def _difference(here: Plan, there: Plan) -> str:
    """Returns in words the first field of two plans that differs."""
    for field in dataclasses.fields(Plan):
        mine, theirs = getattr(here, field.name), getattr(there, field.name)
        if field.compare and mine != theirs:
            return f"{field.name} is {mine!r} on one and {theirs!r} on the other"
    return "they differ"


def from_rank_0(
    comm: MPI.Comm, make: Callable[[Callable[[], None]], T], timeout: float
) -> T:
    """Returns on every rank the object that rank 0 makes; a call of all ranks.

    Args:
        comm: Communicator of all ranks.
        make: Called on rank 0. It calls its argument now and then, so that others wait
            for longer than the timeout as long as it goes on.
        timeout: Seconds to wait for a sign of rank 0.

    Raises:
        DisagreementError: On the others, if ``make`` fails.
        Exception: On rank 0, what ``make`` raises.
        StallError: If rank 0 gives no sign.
    """
    if comm.rank != 0:
        while (told := broadcast_object(comm, None, 0, timeout)) is None:
            pass
        if isinstance(told, Refusal):
            raise DisagreementError(f"rank 0 refuses to start: {told}")
        return told
    said_last = time.monotonic()

    def goes_on() -> None:
        nonlocal said_last
        if time.monotonic() - said_last > timeout / _SIGNS_OF_LIFE:
            broadcast_object(comm, None, 0, timeout)
            said_last = time.monotonic()

    try:
        made = make(goes_on)
    except Exception as error:
        words = Refusal(words_of(error))
        broadcast_object(comm, words, 0, timeout)
        raise
    broadcast_object(comm, made, 0, timeout)
    return made
