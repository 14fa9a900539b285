"""Compares the plans that ranks are given, before they start.

Each rank sends its plan and the other arguments, and receives those of all::

    rank 0   plan='auto', file found ---.           .--->  rank 0's plan
    rank 1   plan='auto' ---------------+--> all ---+--->  rank 0's plan
    rank 2   refuses: no such machine --'           '--->  its own error; others name it

If the plan is in a file, or still to be made, rank 0's is used on all ranks. A rank
without a plan receives the others' descriptions as refusals to start. The others
receive its announcement, which is not a description of a plan.
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
# Number of signs of life that rank 0 sends within the timeout of the others.
_SIGNS_OF_LIFE = 4


class PlanFacts(NamedTuple):
    """A rank's plan, arguments and model, for the other ranks.

    Attributes:
        plan: The plan, as far as this rank knows it.
        settings: Arguments that must be equal on all ranks, as texts, by name.
        hold_in: Place for this rank's microbatches; ``None`` if not given.
        host: Name of the host.
        model_layers: A text about each layer of the model.
        skips: Skip connections of the model.
        ties: Parameters that several of its layers use.
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
            # Other ranks do not need the alternatives.
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
    """A rank's message about its plan; a refusal for ranks without one.

    Attributes:
        facts (PlanFacts): The plan and arguments, for ranks with a plan.
    """

    facts: PlanFacts

    @classmethod
    def of(cls, facts: PlanFacts) -> PlanWords:
        """Returns the message with a plan and arguments."""
        words = cls("it is given plan=, which not all ranks are: give it on all")
        words.facts = facts
        return words


def agree_on_plan(said: Sequence[Any]) -> list[PlanFacts]:
    """Compares the messages of all ranks.

    Args:
        said: Message of each rank: :class:`PlanWords`, a ``Refusal``, or the
            announcement of a rank that starts without a plan.

    Returns:
        Plans and arguments of all ranks. Rank 0 has the plan of all, if it is known.

    Raises:
        DisagreementError: If a rank refuses or has no plan, or if plans, models or
            other arguments differ.
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
    """Returns a text about the first field in which two plans differ."""
    for field in dataclasses.fields(Plan):
        mine, theirs = getattr(here, field.name), getattr(there, field.name)
        if field.compare and mine != theirs:
            return f"{field.name} is {mine!r} on one and {theirs!r} on the other"
    return "they differ"


def from_rank_0(
    comm: MPI.Comm, make: Callable[[Callable[[], None]], T], timeout: float
) -> T:
    """Returns the object that rank 0 makes; all ranks must call it.

    Args:
        comm: Communicator of all ranks.
        make: Function that is called on rank 0. It must call its argument often, so
            that other ranks wait for longer than the timeout.
        timeout: Seconds to wait for a sign of life of rank 0.

    Raises:
        DisagreementError: On the other ranks, if ``make`` fails.
        Exception: On rank 0, the error of ``make``.
        StallError: If rank 0 sends no sign of life.
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
