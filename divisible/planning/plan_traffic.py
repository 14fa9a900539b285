"""The bytes that the ranks of a plan send in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from divisible.communication.wire import BLOCK, WIRE
from divisible.planning.placement import Traffic
from divisible.schedules.catalogue import create

if TYPE_CHECKING:
    from divisible.planning.plan import Plan


def traffic_of(plan: Plan) -> Traffic:
    """Returns the bytes that the ranks of a plan send in a step.

    Raises:
        ValueError: If the plan does not say what its stages send.
    """
    stages, m = plan.stages, plan.n_microbatches
    if stages is None or m is None or not any(stage.n_gradients for stage in stages):
        raise ValueError(
            f"the plan {plan.cuts} does not say what its stages send: make it with"
            f" best_plan, or choose a placement"
        )
    n_ranks = plan.n_ranks // plan.replicas
    ranks: Sequence[int] = range(n_ranks)
    if plan.stages_per_rank > 1:
        ranks = create(plan.schedule, plan.n_stages, m, n_ranks).stage_ranks
    messages: Counter[tuple[int, int]] = Counter()
    for stage, a, b in zip(stages, ranks, ranks[1:]):
        if a != b:
            messages[a, b] += m * stage.output_bytes
            messages[b, a] += m * stage.output_bytes
    elements: Counter[int] = Counter()
    for stage, rank in zip(stages, ranks):
        elements[rank] += stage.n_gradients
    coded, exact = (
        [WIRE[name].n_bytes(elements[rank], BLOCK) for rank in range(n_ranks)]
        for name in (plan.wire_dtype or "fp32", "fp32")
    )
    return Traffic(dict(messages), coded, exact)
