"""The bytes that the ranks of a plan send in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from divisible.communication.wire import BLOCK, WIRE
from divisible.placement import Traffic
from divisible.planning.expected_costs import StagePlan


def traffic_of(
    stages: Sequence[StagePlan],
    stage_ranks: Sequence[int],
    n_microbatches: int,
    exchange_dtype: str = "fp32",
) -> Traffic:
    """Returns the bytes that the ranks of a pipeline send in a step.

    Args:
        stages: The stages, from first to last.
        stage_ranks: The rank of each stage in its pipeline.
        n_microbatches: Number of microbatches of a minibatch.
        exchange_dtype: The dtype in which gradients travel between hosts.

    Example:
        >>> stage = StagePlan(1.0, 0.0, 0, output_bytes=100, n_gradients=10)
        >>> traffic = traffic_of([stage, stage], [0, 1], n_microbatches=8)
        >>> traffic.messages, traffic.gradients
        ({(0, 1): 800, (1, 0): 800}, [40, 40])
    """
    messages: Counter[tuple[int, int]] = Counter()
    for stage, a, b in zip(stages, stage_ranks, stage_ranks[1:]):
        if a != b:
            messages[a, b] += n_microbatches * stage.output_bytes
            messages[b, a] += n_microbatches * stage.output_bytes
    elements: Counter[int] = Counter()
    for stage, rank in zip(stages, stage_ranks):
        elements[rank] += stage.n_gradients
    coded, exact = (
        [WIRE[name].n_bytes(elements[rank], BLOCK) for rank in sorted(elements)]
        for name in (exchange_dtype, "fp32")
    )
    return Traffic(dict(messages), coded, exact)
