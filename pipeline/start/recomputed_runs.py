"""The argument ``recompute`` of a pipeline: a word for microbatches, or layers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from divisible.number_lists import as_list
from divisible.planning.plan_fields import runs as as_runs
from divisible.schedules.recomputation import check_recomputation

#: The position of the first layer of a run, and the one behind its last.
Span = tuple[int, int]


def split_recompute(
    recompute: str | Sequence[int | Span], n_layers: int
) -> tuple[str, tuple[Span, ...]]:
    """Returns when microbatches are recomputed, and the runs of layers that are.

    Args:
        recompute: A word; or positions of layers, where neighbours make a run, and runs
            as pairs, each of its first position and the one after its last.
        n_layers (int): Number of layers of the model.

    Raises:
        TypeError: If it is neither.
        ValueError: If there is no such word or layer, or a layer is in two runs.

    Example:
        >>> split_recompute([2, 3, (4, 6)], 8)
        ('never', ((2, 4), (4, 6)))
    """
    if isinstance(recompute, str):
        check_recomputation("recompute", recompute)
        return recompute, ()
    found: list[Any] = []
    neighbour = None
    for each in as_list(recompute):
        if isinstance(each, bool) or not isinstance(each, SupportsIndex):
            found.append(each)
            neighbour = None
        elif (position := operator.index(each)) == neighbour:
            found[-1] = found[-1][0], position + 1
            neighbour = position + 1
        else:
            found.append((position, position + 1))
            neighbour = position + 1
    return "never", as_runs("recompute", found, n_layers)
