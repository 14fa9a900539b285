"""Profiles and plans as tables of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from divisible.planning.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from divisible.planning.plan import Plan
    from divisible.planning.profile import Profile

_SECONDS = ("forward", "backward_input", "backward_weight")

PLAN_COLUMNS = ("stage", "layers", "microbatch", "of slowest", "link", "memory", "of")


PROFILE_COLUMNS = (
    "layer",
    "",
    "forward",
    "input grad",
    "weight grad",
    "share",
    "output",
    "activations",
    "parameters",
    "optimizer",
)


def profile_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Returns a profile as text: a row for each layer, the loss, and the sums."""
    costs = [(str(i), cost) for i, cost in enumerate(profile.layers)]
    seconds = profile.seconds
    if profile.loss is not None:
        costs.append(("loss", profile.loss))
    rows = [
        (
            position,
            cost.title if len(cost.title) <= 44 else cost.title[:43] + "…",
            *(format_seconds(getattr(cost, name)) for name in _SECONDS),
            f"{cost.seconds / seconds:.1%}",
            format_bytes(cost.output_bytes),
            format_bytes(cost.activation_bytes),
            format_bytes(cost.parameter_bytes),
            format_bytes(cost.optimizer_bytes),
        )
        for position, cost in costs
    ]
    sums = (
        "sum",
        "",
        *(format_seconds(profile.column(name).sum()) for name in _SECONDS),
        "100.0%",
        "",
        *(
            format_bytes(profile.column(name).sum())
            for name in ("activation_bytes", "parameter_bytes", "optimizer_bytes")
        ),
    )
    return [*rows, sums]


def plan_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Returns the stages of a plan as text."""
    slowest = max(stage.seconds for stage in plan.stages)
    return [
        (
            str(number),
            f"{start}..{end - 1}",
            format_seconds(stage.seconds),
            f"{stage.seconds / slowest:.0%}",
            format_seconds(stage.link_seconds),
            format_bytes(stage.memory),
            "" if stage.memory_limit is None else format_bytes(stage.memory_limit),
        )
        for number, (start, end, stage) in enumerate(
            zip(plan.cuts, plan.cuts[1:], plan.stages)
        )
    ]
