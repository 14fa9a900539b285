"""A plan in a line of text: for a log, and for the title of a picture."""

from __future__ import annotations

from typing import Any

from divisible.planning.recomputed_layers import split_at
from divisible.planning.retained_arrays import FULL
from divisible.planning.units import (
    count,
    format_bytes,
    format_seconds,
    words_of_groups,
    words_of_runs,
)
from divisible.records import shown
from divisible.schedules.lower_bound import above


def title_of(plan: Any) -> str:
    """Returns schedule, microbatches and cuts of a plan, for a picture.

    Args:
        plan (Plan): The plan.
    """
    words = [plan.schedule or "plan", f"cut at {shown(plan.cuts)}"]
    if plan.n_microbatches is not None:
        words.insert(1, count(plan.n_microbatches, "microbatch"))
    if plan.replicas > 1:
        words.append(f"{plan.replicas} replicas")
    if plan.recompute != "never":
        words.append(f"recomputation {plan.recompute}")
    if plan.recomputed:
        words.append(f"layers {words_of_runs(plan.recomputed)} recomputed")
    words += words_of_groups(plan.weight_groups, plan.stage_groups)
    return ", ".join(words)


def headline_of(plan: Any) -> str:
    """Returns all that a plan has chosen, and the predicted step.

    Args:
        plan (Plan): The plan.
    """
    words = [f"{plan.n_layers} layers cut at {plan.cuts}"]
    if plan.n_ranks != plan.n_stages:
        words.append(count(plan.n_ranks, "rank"))
    if plan.schedule is not None:
        words.append(f"{plan.schedule} schedule")
    if plan.n_microbatches is not None:
        words.append(count(plan.n_microbatches, "microbatch"))
    if plan.recompute != "never":
        words.append(f"recomputation {plan.recompute}")
    if plan.recomputed:
        words.append(f"layers {words_of_runs(plan.recomputed)} recomputed")
    words += words_of_groups(plan.weight_groups, plan.stage_groups)
    if "disk" in plan.hold_in:
        ranks = [i for i, place in enumerate(plan.hold_in) if place == "disk"]
        words.append(f"held on disk by the ranks {', '.join(map(str, ranks))}")
    if plan.hold_dtype != FULL:
        words.append(f"held in {plan.hold_dtype}")
    if plan.streamed:
        words.append(f"layers {', '.join(map(str, plan.streamed))} streamed")
    narrowed = [i for i, each in enumerate(plan.messages) if each.is_narrowed]
    if narrowed:
        kinds = dict.fromkeys(str(plan.messages[i]) for i in narrowed)
        edges = ", ".join(f"{i}-{i + 1}" for i in narrowed)
        words.append(f"messages between stages {edges} in {' or '.join(kinds)}")
    if plan.replicas > 1:
        shares = ""
        if plan.shares is not None:
            shares = f" with shares {':'.join(f'{x:g}' for x in plan.shares)}"
        words.append(f"{plan.replicas} replicas{shares}")
        if plan.exchange_dtype is not None:
            feedback = " with error feedback" * plan.error_feedback
            words.append(f"gradients in {plan.exchange_dtype}{feedback}")
    if plan.step_seconds is not None:
        words.append(f"{format_seconds(plan.step_seconds)} a step")
    if plan.bubble is not None:
        words.append(f"bubble {plan.bubble:.1%}")
    if plan.gap is not None:
        words.append(above(plan.gap))
    return ", ".join(words)


def gains_of(plan: Any) -> list[str]:
    """Returns a line for each stage about what its recomputed layers gain.

    Args:
        plan (Plan): A plan with the costs of its stages.
    """
    lines = []
    parts = [*split_at(plan.recomputed, plan.cuts)]
    for number, stage in enumerate(plan.stages):
        start, end = plan.range(number)
        mine = [part for part in parts if start <= part[0] < end]
        if mine and stage.again_seconds:
            rate = stage.freed_bytes / stage.again_seconds
            lines.append(
                f"stage {number} recomputes layers {words_of_runs(mine)}:"
                f" {format_bytes(stage.freed_bytes)} less, for"
                f" {format_seconds(stage.again_seconds)} of each microbatch"
                f" ({format_bytes(rate)}/s)"
            )
    return lines
