"""Cuts for a plan: so that it fits, if necessary with a disk, and in unequal shares.

::

    uncut plan --> fits as it is?  -- no, or memory binds -->  microbatches wait on disk
                        |                                      weights are on disk
                   equal replicas? -- no -->  samples by speed <--> cut, in turn
                        |
                   cut plans, each with the least that a step takes

The search over plans is in `divisible.planning.search`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from divisible.planning.bounds import lower_bound, work_of_ranks
from divisible.planning.cost_model import CostModel
from divisible.planning.cut_plan import LAYERS, CutPlan, UncutPlan
from divisible.planning.cuts import MemoryLimitError, find_cuts
from divisible.planning.disk import streamed_cost
from divisible.planning.layer_choice import layers_to_recompute, recomputing
from divisible.planning.recomputed_cuts import recomputed_cuts
from divisible.planning.unequal_replicas import parts_by_speed
from divisible.planning.units import format_bytes
from divisible.planning.workload import Workload
from divisible.schedules.absences import absences

# Number of times that parts of replicas and the cut are adapted to each other.
_ROUNDS = 2
# Parts of a rank's memory that are tried for its first of several stages, if the best
# cut without a limit does not fit.
_FIRST_SHARES = (0.5, 0.375, 0.625, 0.25, 0.75, 0.125, 0.875)


def cut_plans(workload: Workload, uncut: UncutPlan) -> list[CutPlan]:
    """Cuts the model for a plan, with arrays on disk if they do not fit into memory.

    Args:
        workload: The minibatch on its machine.
        uncut: The plan.

    Raises:
        MemoryLimitError: If the plan does not fit, with a disk or without one.
    """
    if workload.machine.disk is None:
        return _shared_out(workload, uncut)
    found, reason = [], None
    try:
        found += _shared_out(workload, uncut)
    except MemoryLimitError as error:
        reason = error
    if reason is not None or is_bound(workload, uncut):
        found += _with_disk(workload, uncut)
    if not found:
        raise reason
    return found


def cut_plan(
    workload: Workload,
    uncut: UncutPlan,
    cuts: Sequence[int] | None = None,
    parts: tuple[int, ...] | None = None,
) -> CutPlan:
    """Cuts the model for a plan, and given parts of a minibatch.

    Args:
        workload: The minibatch on its machine.
        uncut: The plan.
        cuts: Positions of the cuts; by default, those with the fastest slowest stage.
        parts: Samples of each replica; equal ones by default.

    Raises:
        MemoryLimitError: If the plan does not fit. For ranks with several stages, some
            ways to share their memory are tried, not all.
    """
    if parts is not None and max(parts) - min(parts) <= 1:
        parts = None
    model = workload.cost_model(uncut, parts)
    memory = workload.memory(uncut)
    chooses = uncut.recompute == LAYERS

    def with_bound(cuts: Sequence[int], limits: np.ndarray) -> CutPlan:
        again = layers_to_recompute(model, cuts, limits) if chooses else ()
        if again is None:
            raise MemoryLimitError(
                f"cut at {cuts}, a stage does not fit, whichever layers are recomputed."
                " Use more ranks or smaller microbatches."
            )
        chosen, on_disk = recomputing(model, again, cuts), None
        _check_memory(cuts, chosen, memory)
        if model.on_disk is not None:
            # Only on the ranks that have no room for their microbatches.
            in_memory = chosen.waiting_on(None)
            on_disk = tuple((in_memory.rank_bytes(cuts) > memory).tolist())
            chosen = chosen.waiting_on(on_disk)
        # Cost models of thousands of plans would take gigabytes.
        return CutPlan(uncut, cuts, lower_bound(chosen, cuts), parts, on_disk, again)

    def within(limits: np.ndarray) -> CutPlan:
        if cuts is not None:
            return with_bound(cuts, limits)
        find = recomputed_cuts if chooses else find_cuts
        return with_bound(find(model, limits), limits)

    if uncut.stages_per_rank == 1:
        return within(memory)
    try:
        return within(np.full(model.n_stages, np.inf))
    except MemoryLimitError as error:
        if cuts is not None and not chooses:
            raise
        at = np.array(model.schedule.stage_ranks)
        return _fastest_that_fits(within, memory, at, error)


def is_bound(workload: Workload, uncut: UncutPlan) -> bool:
    """Returns whether the cut that is best without a limit does not fit.

    Args:
        workload: The minibatch on its machine.
        uncut: The plan.
    """
    if np.isinf(workload.memory(uncut)).all():
        return False
    model = workload.cost_model(uncut)
    cuts = find_cuts(model, np.full(model.n_stages, np.inf))
    return bool((model.rank_bytes(cuts) > workload.memory(uncut)).any())


def _with_disk(workload: Workload, uncut: UncutPlan) -> list[CutPlan]:
    """Cuts for microbatches that wait on disk, and for weights on disk."""
    found, bases = [], [uncut]
    model = workload.cost_model(uncut)
    if model.schedule.weight_versions > 1:
        # A run keeps both versions, and what waits for them, in memory.
        return []
    stays = any(layer.stays_in_memory for layer in workload.profiles[-1].layers)
    if model.links.overlap and absences(model.schedule).leaves.size and not stays:
        holding = uncut._replace(hold_in="disk")
        try:
            found += _shared_out(workload, holding)
        except MemoryLimitError:
            bases.append(holding)
    for base in bases:
        found += _streamed(workload, base)
    return found


def _streamed(workload: Workload, uncut: UncutPlan) -> list[CutPlan]:
    """Cuts for the fewest streamed layers with which a plan fits; none if none fits."""
    if workload.wire.error_feedback and uncut.replicas > 1:
        # Error feedback keeps copies of gradients in memory, for weights on disk too.
        return []
    order = _streaming_order(workload, uncut)
    found: list[CutPlan] = []
    # The number of streamed layers that does not suffice, and the number that does.
    few, enough = 0, len(order) + 1
    n = len(order)
    while few < n < enough:
        streamed = tuple(sorted(order[:n]))
        try:
            found = _shared_out(workload, uncut._replace(streamed=streamed))
            enough = n
        except MemoryLimitError:
            if n == len(order):
                return []
            few = n
        n = (few + enough) // 2
    return found


def _streaming_order(workload: Workload, uncut: UncutPlan) -> list[int]:
    """Returns layers, ordered by the extra seconds on disk per freed byte."""
    plain = workload.cost_model(uncut).largest
    losses = {}
    for i, cost in enumerate(plain.layers):
        if cost.streamable_bytes:
            slow = streamed_cost(cost, workload.machine.disk, uncut.n_microbatches)
            freed = cost.streamable_bytes / cost.parameter_bytes
            freed *= 2 * cost.parameter_bytes + cost.optimizer_bytes
            losses[i] = (slow.seconds - cost.seconds) / freed, -freed
    return sorted(losses, key=losses.__getitem__)


def _shared_out(workload: Workload, uncut: UncutPlan) -> list[CutPlan]:
    """Cuts the model for a plan, and shares a minibatch out to replicas.

    For replicas of unequal speed, parts by speed are found for a cut, and a cut for the
    parts. The search starts from equal parts, and from parts by all speeds of a
    replica. Microbatches have whole samples, so only a simulation shows whether the
    best of these is faster than equal parts.

    Args:
        workload: The minibatch on its machine.
        uncut: The plan.

    Raises:
        MemoryLimitError: If the plan does not fit.
    """
    equal = cut_plan(workload, uncut)
    speeds = workload.speeds(uncut)
    if workload.batch < uncut.replicas or (speeds == speeds[0]).all():
        return [equal]
    unequal = []
    work = [_work(workload, equal), np.full(speeds.shape[1], 1 / speeds.shape[1])]
    by_all = np.repeat(speeds.mean(axis=1)[:, None], speeds.shape[1], axis=1)
    for pace, each in zip((speeds, by_all), work):
        for _ in range(_ROUNDS):
            parts = tuple(parts_by_speed(pace, each, workload.batch))
            try:
                other = cut_plan(workload, uncut, parts=parts)
            except MemoryLimitError:
                break
            unequal += [other] * (other.parts is not None)
            pace, each = speeds, _work(workload, other)
    return [equal, *sorted(unequal, key=lambda other: other.bound)[:1]]


def _work(workload: Workload, cut: CutPlan) -> np.ndarray:
    """Returns the work of each rank of a pipeline, in seconds at speed 1."""
    return work_of_ranks(workload.cost_model_of(cut), cut.cuts)


def _fastest_that_fits(
    cut: Callable[[np.ndarray], CutPlan],
    memory: np.ndarray,
    at: np.ndarray,
    otherwise: MemoryLimitError,
) -> CutPlan:
    """Cuts for several ways in which the stages of a rank may share its memory.

    Args:
        cut: Returns cuts for limits of all stages.
        memory: Bytes that each rank may use.
        at: The rank of each stage.
        otherwise: Error that is raised if nothing fits.
    """
    fitting = []
    for share in _FIRST_SHARES:
        with contextlib.suppress(MemoryLimitError):
            fitting.append(cut(_stage_memory(memory, at, share)))
    if not fitting:
        raise otherwise
    return min(fitting, key=lambda plan: plan.bound)


def _stage_memory(memory: np.ndarray, at: np.ndarray, share: float) -> np.ndarray:
    """Shares the memory of ranks that have several stages each.

    Args:
        memory: Bytes that each rank may use.
        at: The rank of each stage.
        share: The part of the first stage of each rank; the other stages have equal
            parts.

    Returns:
        Bytes of shape (n_stages,).
    """
    per_rank = len(at) // len(memory)
    parts = np.full(len(at), (1 - share) / (per_rank - 1))
    parts[np.unique(at, return_index=True)[1]] = share
    return memory[at] * parts


def _check_memory(cuts: Sequence[int], model: CostModel, memory: np.ndarray) -> None:
    """Refuses cuts that do not fit when the stages of a rank share its memory."""
    needed = model.rank_bytes(cuts)
    lacks = needed - memory
    rank = int(lacks.argmax())
    if lacks[rank] > 0:
        raise MemoryLimitError(
            f"cut at {cuts}, rank {rank} with the stages"
            f" {model.schedule.rank_stages(rank)} needs {format_bytes(needed[rank])},"
            f" {format_bytes(lacks[rank])} more than its {format_bytes(memory[rank])}"
        )
