"""Profiles and plans as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from divisible.planning.expected_costs import StagePlan
from divisible.planning.layer_cost import SECONDS, LayerCost
from divisible.planning.units import format_bytes, format_seconds

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


def profile_rows(
    layers: Sequence[LayerCost], loss: LayerCost | None
) -> list[tuple[str, ...]]:
    """Returns a profile as text: a row for each layer, the loss, and the sums.

    Args:
        layers: The costs of each layer.
        loss: The costs of the loss; ``None`` if it was not measured.
    """
    costs = [(str(i), cost) for i, cost in enumerate(layers)]
    if loss is not None:
        costs.append(("loss", loss))
    seconds = sum(cost.seconds for _, cost in costs)

    def total(name: str) -> float:
        return sum(getattr(cost, name) for _, cost in costs)

    rows = [
        (
            position,
            cost.title if len(cost.title) <= 44 else cost.title[:43] + "…",
            *(format_seconds(getattr(cost, name)) for name in SECONDS),
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
        *(format_seconds(total(name)) for name in SECONDS),
        "100.0%",
        "",
        *(
            format_bytes(total(name))
            for name in ("activation_bytes", "parameter_bytes", "optimizer_bytes")
        ),
    )
    return [*rows, sums]


def plan_rows(
    cuts: Sequence[int], stages: Sequence[StagePlan]
) -> list[tuple[str, ...]]:
    """Returns the stages of a plan as text.

    Args:
        cuts: Positions of the cuts in the model, with 0 and the number of layers.
        stages: The expected costs of each stage.
    """
    slowest = max(stage.seconds for stage in stages)
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
        for number, (start, end, stage) in enumerate(zip(cuts, cuts[1:], stages))
    ]
