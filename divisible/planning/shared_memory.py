"""The memory of ranks that have several stages each, which share it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from divisible.planning.configuration import Candidate
from divisible.planning.partition import MemoryLimitError
from divisible.planning.setting import Setting
from divisible.planning.units import format_bytes

#: Which part of its memory the first stage of a rank gets that has several, if the cut
#: that is best without a limit does not fit.
SHARES = (0.5, 0.375, 0.625, 0.25, 0.75, 0.125, 0.875)


def fastest_that_fits(
    cut: Callable[[np.ndarray], Candidate],
    memory: np.ndarray,
    at: np.ndarray,
    otherwise: MemoryLimitError,
) -> Candidate:
    """Cuts for several ways in which the stages of a rank may share its memory.

    Args:
        cut: Cuts for limits of all stages.
        memory: Of the ranks.
        at: The rank of each stage.
        otherwise: Is raised if nothing fits.
    """
    fitting = []
    for share in SHARES:
        with contextlib.suppress(MemoryLimitError):
            fitting.append(cut(_shared(memory, at, share)))
    if not fitting:
        raise otherwise
    return min(fitting, key=lambda candidate: candidate.bound)


def _shared(memory: np.ndarray, at: np.ndarray, share: float) -> np.ndarray:
    """Shares the memory of ranks that have several stages each.

    Args:
        memory: Of the ranks.
        at: The rank of each stage.
        share: The part of the first stage of each rank; the others have equal ones.

    Returns:
        Bytes of shape (n_stages,).
    """
    per_rank = len(at) // len(memory)
    parts = np.full(len(at), (1 - share) / (per_rank - 1))
    parts[np.unique(at, return_index=True)[1]] = share
    return memory[at] * parts


def check_memory(cuts: Sequence[int], setting: Setting, memory: np.ndarray) -> None:
    """Refuses what does not fit when the stages of a rank share its memory."""
    needed = setting.rank_bytes(cuts)
    lacks = needed - memory
    rank = int(lacks.argmax())
    if lacks[rank] > 0:
        raise MemoryLimitError(
            f"cut at {cuts}, rank {rank} with the stages"
            f" {setting.schedule.rank_stages(rank)} needs {format_bytes(needed[rank])},"
            f" {format_bytes(lacks[rank])} more than its {format_bytes(memory[rank])}"
        )
