"""Cuts of a model by a cost model: optimally, or by other methods to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.planning.dynamic_program import StageCost, evenest, least_lacking
from divisible.planning.expected_costs import StagePlan
from divisible.planning.plan import Plan
from divisible.planning.possible_stages import busy_seconds, bytes_alone, link_seconds
from divisible.planning.units import count, format_bytes

METHODS = ("optimal", "uniform", "parameters", "time")
# Number of stages without enough memory that an error lists.
_SHOWN = 4


class MemoryLimitError(ValueError):
    """No cut fits into the memory of the ranks; the message has the shortages."""


def find_cuts(
    model: CostModel, limits: np.ndarray, method: str = "optimal"
) -> list[int]:
    """Finds cuts by a method.

    Args:
        model: The costs of the stages.
        limits: The memory that each stage may use, in bytes.
        method: One of `METHODS`.

    Raises:
        MemoryLimitError: If the cuts do not fit; with the optimal method, if no cuts
            fit.
    """
    if method == "optimal":
        cuts = _optimal(model, limits)
        if cuts is None:
            raise _explain(model, limits)
        return cuts
    n_layers = len(model.largest)
    if method == "uniform":
        cuts = Plan.uniform(n_layers, model.n_stages).cuts
    elif method == "parameters":
        # Layers without parameters are spread as well: all together count as half a
        # byte.
        cuts = _balanced(
            model.largest.sums.parameters + np.linspace(0, 0.5, n_layers + 1), model
        )
    else:
        cuts = _balanced(busy_seconds(model)[0], model)
    check_cuts(model, cuts, limits)
    return cuts


def stage_plans(
    model: CostModel,
    cuts: Sequence[int],
    limits: np.ndarray,
    plain: CostModel | None = None,
) -> tuple[StagePlan, ...]:
    """Returns the expected costs of the stages of a plan.

    Args:
        model: The costs of the stages.
        cuts: Positions of the cuts in the model.
        limits: The memory that each stage may use, in bytes.
        plain: The costs without layers that are recomputed; ``model`` without any.
    """
    plain = model if plain is None else plain
    before = np.diagonal(link_seconds(model)[:, cuts[:-1]])
    sums = model.largest.sums.stages(cuts)
    columns = (
        seconds := model.seconds(cuts),
        before,
        memory := model.bytes(cuts).round().astype(int),
        limits,
        sums.output_bytes.astype(int),
        sums.n_gradients,
        np.maximum(seconds - plain.seconds(cuts), 0.0),
        np.maximum(plain.bytes(cuts).round().astype(int) - memory, 0),
    )
    return tuple(
        StagePlan(seconds, link, memory, None if limit == np.inf else limit, *sizes)
        for seconds, link, memory, limit, *sizes in zip(*(c.tolist() for c in columns))
    )


def check_cuts(model: CostModel, cuts: Sequence[int], limits: np.ndarray) -> None:
    """Refuses cuts that do not fit the model or the memory."""
    plan = Plan(cuts)
    if (plan.n_stages, plan.n_layers) != (model.n_stages, len(model.largest)):
        raise ValueError(
            f"the cuts {plan.cuts} make {count(plan.n_stages, 'stage')} of"
            f" {count(plan.n_layers, 'layer')}, not {model.n_stages} of"
            f" {len(model.largest)}"
        )
    shortage = _shortage(model, cuts, limits)
    if shortage:
        raise MemoryLimitError(f"the cuts {plan.cuts} do not fit: {shortage}")


def _optimal(model: CostModel, limits: np.ndarray) -> list[int] | None:
    """Minimises the slowest stage; None if nothing fits."""
    busy = busy_seconds(model)
    links = link_seconds(model)
    before, behind = links[:-1], links[1:]
    if model.links.overlap:
        cost = StageCost(busy, busy, before, busy)
    else:
        # Each message keeps both of its ranks busy: one each way, on either side.
        none = np.zeros_like(busy)
        cost = StageCost(busy + 2 * behind, busy - 2 * before, none, busy)
    return evenest(model, cost, limits)


def _balanced(sums: np.ndarray, model: CostModel) -> list[int]:
    """Minimises the greatest difference of sums, independent of ranks and links."""
    sums = np.tile(sums, (model.n_stages, 1))
    cost = StageCost(sums, sums, np.zeros_like(sums), sums)
    return evenest(model, cost, np.full(model.n_stages, np.inf))


def _explain(model: CostModel, limits: np.ndarray) -> MemoryLimitError:
    """Returns an error with the shortages of the plan that lacks least memory."""
    alone = bytes_alone(model)
    lacks = np.where(_may_hold(*alone.shape), alone - limits[:, None], np.inf)
    largest = int(lacks.min(axis=0).argmax())
    s = int(lacks[:, largest].argmin())
    cuts = least_lacking(model, limits)
    message = (
        f"no plan of {count(model.n_stages, 'stage')} fits into the memory of the"
        f" ranks. In {cuts}, which lacks least, {_shortage(model, cuts, limits)}."
    )
    if lacks[s, largest] > 0:
        message += (
            f" Layer {largest} alone fits nowhere: where it lacks least, as stage {s},"
            f" it needs {format_bytes(alone[s, largest])}. Use smaller microbatches."
        )
    else:
        message += " Use more ranks, smaller microbatches, or recomputation."
    return MemoryLimitError(message)


def _may_hold(n_stages: int, n_layers: int) -> np.ndarray:
    """Returns which stages can have which layers, if each stage has one at least.

    Returns:
        Booleans of shape (n_stages, n_layers).
    """
    before = np.arange(n_layers) - np.arange(n_stages)[:, None]
    return (before >= 0) & (before <= n_layers - n_stages)


def _shortage(model: CostModel, cuts: Sequence[int], limits: np.ndarray) -> str:
    """Returns a text of the stages that lack memory; empty without any."""
    lacks = [
        f"stage {s} (layers {start} to {end - 1}) needs {format_bytes(needed)},"
        f" {format_bytes(needed - limit)} more than the {format_bytes(limit)} of its"
        f" rank"
        for s, (start, end, needed, limit) in enumerate(
            zip(cuts, cuts[1:], model.bytes(cuts).tolist(), limits.tolist())
        )
        if needed > limit
    ]
    if len(lacks) > _SHOWN:
        lacks[_SHOWN:] = [f"and {len(lacks) - _SHOWN} more stages lack memory"]
    return "; ".join(lacks)
