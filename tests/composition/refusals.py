"""What a pipeline refuses, with the features that do not go together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.composition.cases import Case, Way


class Refusal(NamedTuple):
    """A pair of features that are refused together.

    Attributes:
        features: The two, in words of the documentation.
        applies: Whether a case has both.
        words: Pattern of the message, which names both.
        reason: Why, for the table.
    """

    features: tuple[str, str]
    applies: Callable[[Case], bool]
    words: str
    reason: str


def _overlaps(way: Way) -> bool:
    return way.get("overlap_minibatches") is True


def _of_overlap(
    feature: str, name: str, applies: Callable[[Case, Way], bool]
) -> Refusal:
    """Returns the refusal of a feature that needs the whole model between steps."""
    return Refusal(
        ("overlap_minibatches", feature),
        lambda case: any(_overlaps(way) and applies(case, way) for way in case.ways),
        f"overlap_minibatches=True does not go together with {name}",
        "an update, or the next minibatch, needs the whole model",
    )


def _carries(case: Case) -> bool:
    return bool({"lstm", "gru"} & {*case.model.blocks})


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        ("groups of stages", "carry_state"),
        lambda case: _carries(case) and any(w.get("stage_groups") for w in case.ways),
        "groups of stages do not go together with carry_state",
        "the microbatches of a group would begin from the states of others",
    ),
    Refusal(
        ("error_feedback", "streamed layers"),
        lambda case: (
            "streamed" in case.model.blocks
            and any(dict(way.exchange).get("error_feedback") for way in case.ways)
        ),
        "is streamed from disk, and error_feedback=True keeps a copy",
        "weights on disk are too large for a copy of their gradients in memory",
    ),
    Refusal(
        ("carry_state", "replicas"),
        lambda case: _carries(case) and any(way.n_replicas > 1 for way in case.ways),
        "carry_state goes together with replicas that have the same samples"
        "|has .* samples in replica .* but layers go on from the minibatch before"
        "|was carried by .* and cannot be shared out among",
        "a replica has the states of its own samples: minibatches of one size, in the "
        "same shares",
    ),
    Refusal(
        ("deferred_batch_norm=False", "replicas"),
        lambda case: any(
            way.n_replicas > 1 and way.get("deferred_batch_norm") is False
            for way in case.ways
        ),
        "deferred_batch_norm=False does not go together with replicas",
        "each replica would move running averages by its own samples",
    ),
    Refusal(
        ("accumulated gradients", "replicas"),
        lambda case: (
            bool(case.life.accumulates) and any(way.n_replicas > 1 for way in case.ways)
        ),
        r"step\(accumulate=True\) does not go together with replicas",
        "gradients are exchanged while a step computes",
    ),
    Refusal(
        ("accumulated gradients", "streamed layers"),
        lambda case: bool(case.life.accumulates) and "streamed" in case.model.blocks,
        r"step\(accumulate=True\) does not go together with streamed layers",
        "a copy of their gradients does not fit into memory",
    ),
    _of_overlap("replicas", "replicas", lambda _, way: way.n_replicas > 1),
    _of_overlap("ties", "ties", lambda case, _: bool(case.model.ties)),
    _of_overlap(
        "streamed layers",
        "streamed layers",
        lambda case, _: "streamed" in case.model.blocks,
    ),
    _of_overlap(
        "carry_state",
        "carry_state",
        lambda case, _: _carries(case),
    ),
    _of_overlap(
        "counted losses", "lossfun", lambda case, _: case.model.loss == "counted"
    ),
    _of_overlap(
        "losses of outputs",
        "lossfun",
        lambda case, _: case.model.loss == "outputs alone",
    ),
    _of_overlap("several outputs", "lossfun", lambda case, _: case.model.n_outputs > 1),
)


def refusal_of(case: Case, words: str) -> int | None:
    """Returns the number of a refusal by its message; ``None`` if it is unknown."""
    for number, each in enumerate(REFUSALS):
        if each.applies(case) and re.search(each.words, words, re.DOTALL):
            return number
    return None
