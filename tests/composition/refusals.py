"""Refusals of a pipeline, with the features that do not go together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tests.composition import models
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
    feature: str,
    name: str,
    applies: Callable[[Case, Way], bool],
    reason: str = "an update, or the next minibatch, needs the whole model",
) -> Refusal:
    """Returns the refusal of a feature that needs the whole model between steps."""
    return Refusal(
        ("overlap_minibatches", feature),
        lambda case: any(_overlaps(way) and applies(case, way) for way in case.ways),
        f"overlap_minibatches=True does not go together with {name}",
        reason,
    )


def _of_two_versions(
    feature: str, name: str, applies: Callable[[Case, Way], bool]
) -> Refusal:
    """Returns the refusal of a feature that needs the gradient of its own step."""
    return Refusal(
        ("pipedream_2bw", feature),
        lambda case: any(
            way.has_two_versions and applies(case, way) for way in case.ways
        ),
        f"'pipedream_2bw' does not go together with ({name})"
        f"|({name}) does not go together with schedule 'pipedream_2bw'",
        "gradients come one step late, with the weights of the step before",
    )


def _carries(case: Case) -> bool:
    return models.carries(case.model)


#: Features that need the whole model between steps: the feature, its name in messages,
#: and whether a case has it.
_OF_WHOLE_MODELS: tuple[tuple[str, str, Callable[[Case, Way], bool]], ...] = (
    ("replicas", "replicas", lambda _, way: way.n_replicas > 1),
    ("ties", "ties", lambda case, _: bool(case.model.ties)),
    (
        "streamed layers",
        "streamed layers",
        lambda case, _: "streamed" in case.model.blocks,
    ),
    ("carry_state", "carry_state", lambda case, _: _carries(case)),
)
#: Losses that count samples when they have seen the outputs.
_OF_COUNTS: tuple[tuple[str, str, Callable[[Case, Way], bool]], ...] = (
    ("counted losses", "lossfun", lambda case, _: case.model.loss == "counted"),
    (
        "losses of outputs",
        "lossfun",
        lambda case, _: case.model.loss == "outputs alone",
    ),
    ("several outputs", "lossfun", lambda case, _: case.model.n_outputs > 1),
    ("auxiliary losses", "lossfun", lambda case, _: "auxiliar" in case.model.loss),
)


def _is_masked_late(case: Case, compression: str) -> bool:
    is_late = case.update.loss_scale or "GradientClipping" in case.update.hooks
    return case.update.compression == compression and bool(is_late)


_MASKS = "(loss_scale|GradientClipping) and the hook Masks"
_NOT_TAKEN_BACK = (
    "with a loss scale or GradientClipping alone: an update is taken back, but not what"
    " the hook of the masks has changed"
)
_OF_MASKS: tuple[tuple[str, str, Callable[[Case, Way], bool]], ...] = (
    ("Prune", _MASKS, lambda case, _: _is_masked_late(case, "prune")),
    ("Prune of channels", _MASKS, lambda case, _: _is_masked_late(case, "channels")),
)
_OF_TWO_VERSIONS: tuple[tuple[str, str, Callable[[Case, Way], bool]], ...] = (
    (
        "transport='chainermn'",
        "transport='chainermn'",
        lambda _, way: way.get("transport") == "chainermn",
    ),
    ("hold_in", "hold_in", lambda _, way: bool(way.get("hold_in"))),
    ("hold_dtype", "hold_dtype", lambda _, way: bool(way.get("hold_dtype"))),
    ("weight_groups", "weight_groups", lambda _, way: bool(way.get("weight_groups"))),
    (
        "loss_scale",
        "loss_scale|MixedPrecision",
        lambda case, _: case.update.loss_scale > 0,
    ),
    (
        "dynamic loss scale",
        "loss_scale|MixedPrecision",
        lambda case, _: case.update.loss_scale < 0,
    ),
    ("Prune", "Compress", lambda case, _: case.update.compression == "prune"),
    (
        "Prune of channels",
        "Compress",
        lambda case, _: case.update.compression == "channels",
    ),
    ("Quantize", "Compress", lambda case, _: case.update.compression == "quantize"),
)
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
        ("double_buffering", "streamed layers"),
        lambda case: (
            "streamed" in case.model.blocks
            and any(dict(way.exchange).get("double_buffering") for way in case.ways)
        ),
        "is streamed from disk, and double_buffering=True keeps a copy",
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
        ("pipedream_2bw", "accumulated gradients"),
        lambda case: (
            bool(case.life.accumulates) and any(w.has_two_versions for w in case.ways)
        ),
        r"step\(accumulate=True\) does not go together with two weight versions",
        "a step has the gradients of the one before",
    ),
    Refusal(
        ("accumulated gradients", "streamed layers"),
        lambda case: bool(case.life.accumulates) and "streamed" in case.model.blocks,
        r"step\(accumulate=True\) does not go together with streamed layers",
        "a copy of their gradients does not fit into memory",
    ),
    *(_of_overlap(*each) for each in _OF_WHOLE_MODELS),
    *(_of_overlap(*each, _NOT_TAKEN_BACK) for each in _OF_MASKS),
    _of_overlap(
        "GradientClipping",
        "GradientClipping",
        lambda case, way: (
            way.has_two_versions and "GradientClipping" in case.update.hooks
        ),
        "with 'pipedream_2bw' alone: other schedules confirm the norm later",
    ),
    _of_overlap(
        "transport='chainermn'",
        "(loss_scale|GradientClipping) and transport='chainermn'",
        lambda case, way: (
            way.get("transport") == "chainermn"
            and (
                "GradientClipping" in case.update.hooks or bool(case.update.loss_scale)
            )
        ),
        "with a loss scale or GradientClipping alone: its sends block, so no update is"
        " confirmed later",
    ),
    *(
        _of_two_versions(*each)
        for each in (*_OF_WHOLE_MODELS, *_OF_COUNTS, *_OF_TWO_VERSIONS)
    ),
    Refusal(
        ("message_dtype", "transport='chainermn'"),
        lambda case: any(
            way.get("message_dtype") and way.get("transport") == "chainermn"
            for way in case.ways
        ),
        "message_dtype needs the transport 'mpi' or 'rma'",
        "ChainerMN sends arrays as they are",
    ),
    Refusal(
        ("double_buffering", "a move of layers"),
        lambda case: (
            any(event.name == "move" for event in case.life.events)
            and any(way.is_double_buffered for way in case.ways)
        ),
        "with double_buffering gradients of layers are under way",
        "gradients of layers where they were wait for their update",
    ),
    Refusal(
        ("double_buffering", "shrink"),
        lambda case: (
            any(event.name == "shrink" for event in case.life.events)
            and any(way.is_double_buffered for way in case.ways)
        ),
        "with double_buffering gradients of all channels are under way",
        "gradients of all channels wait for their update",
    ),
    Refusal(
        ("schedule='auto'", "a move of layers"),
        lambda case: (
            any(way.schedule == "auto" for way in case.ways)
            and any(event.name == "move" for event in case.life.events)
        ),
        "the first minibatches choose the schedule 'auto'",
        "the trial measures stages that stay as they are; move layers after it",
    ),
)


def refusal_of(case: Case, words: str) -> int | None:
    """Returns the number of a refusal by its message; ``None`` if it is unknown."""
    for number, each in enumerate(REFUSALS):
        if each.applies(case) and re.search(each.words, words, re.DOTALL):
            return number
    return None


def is_refused(case: Case) -> bool:
    """Returns whether a case has a pair of features that is refused."""
    return any(each.applies(case) for each in REFUSALS)
