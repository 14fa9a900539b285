"""The generator of DualPipeV: one way forward, the other way backward."""

from __future__ import annotations

from collections import deque

import numpy as np

from divisible.schedules.generators import check_positive, collect
from divisible.schedules.schedule import Schedule


def dualpipe_v(n_ranks: int, n_microbatches: int) -> Schedule:
    """Two stages on each rank in the shape of a V, one forward while one goes back.

    Rank ``r`` holds stages ``r`` and ``2 n_ranks - 1 - r``, as in `zero_bubble_v`. Once
    full, each rank runs a forward of one stage and a backward of the other in turn. The
    order is made for ranks that compute both at once, so that messages of one hide
    behind computations of the other. Here they run one after the other.

    With F = I = W of one stage, ``d`` ranks and ``m >= 2 d``: makespan
    ``2 m (F + I + W) + (d - 1) F``, as `zero_bubble_v`. With fewer microbatches the
    schedule is the one for ``2 d``, without the surplus. Activations and pending W
    together on each rank: at most ``min(m, d + 1 / 2)`` microbatches.

    Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1 (DualPipe),
    cut in half by Qi et al., DualPipe could be better without the Dual, 2025; the
    phases are those of DualPipeV in https://github.com/deepseek-ai/DualPipe. There a
    backward of the full pipeline is whole, and runs together with a forward. Here it is
    I and then W, so that the gradient leaves in between.

    Args:
        n_ranks: Number of ranks; there are twice as many stages.
        n_microbatches: Number of microbatches; may be less than the stages.

    Returns:
        The schedule.

    Raises:
        ScheduleError: If a number is less than 1.

    Example:
        >>> print(dualpipe_v(n_ranks=2, n_microbatches=3))
        dualpipe_v: 3 microbatches, 4 stages on ranks 0 1 1 0
        step      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17  18  19
        rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 3F2 0I0 0W0 3I2 3W2 0I1 0W1   .   . 0I2 0W2
        rank 1    . 1F0 2F0 1F1 2F1 1F2 2I0 2W0 2F2 1I0 1W0 2I1 2W1 1I1 1W1 2I2 2W2 1I2 1W2   .
    """  # noqa: E501
    check_positive(n_ranks=n_ranks, n_microbatches=n_microbatches)
    d, m = n_ranks, max(n_microbatches, 2 * n_ranks)
    rows = []
    for rank in range(d):
        near, far = rank, 2 * d - 1 - rank
        behind = d - 1 - rank
        last = [far, near] * (rank + 1)
        parts = [
            # Fill: ahead on the way to the tip of the V, then in turn on both ways.
            (near, "F" * (2 * behind)),
            *[(near, "F"), (far, "F")] * (rank + 1),
            *[(far, "IWF")] * behind,
            # Full: forward on one way, backward on the other.
            *[(near, "F"), (far, "IW"), (far, "F"), (near, "IW")] * (m - d - behind),
            # Drain: no more forwards from the first stage, then from the last one.
            *[(far, "IW"), (far, "F"), (near, "IW")] * behind,
            *[(stage, "IW") for stage in last[: rank + 1]],
            *[(stage, "I") for stage in last[rank + 1 :]],
        ]
        pending = deque(last[rank + 1 :])
        for _ in range(behind):
            parts += [(pending.popleft(), "W"), (near, "I")]
            pending.append(near)
        parts += [(stage, "W") for stage in pending]
        stages, kinds = zip(*parts)
        rows.append((np.repeat(stages, [*map(len, kinds)]), "".join(kinds)))
    return collect(rows, n_microbatches, "dualpipe_v")
