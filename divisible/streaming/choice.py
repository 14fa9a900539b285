"""Chooses the layers that are on disk: the cheapest ones, until the rest fits.

::

    model in deferred_init  -->  bytes of each layer, by shapes and the optimizer
    profile, disk           -->  extra seconds of a layer whose weights are on disk
    memory                  -->  move the layer with the least seconds for each freed
                                 byte, until the rest fits; undo needless moves
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import chainer
import numpy as np

from divisible.layer_texts import title
from divisible.model import Divisible
from divisible.planning.cost_model import CostModel
from divisible.planning.cuts import MemoryLimitError
from divisible.planning.disk import IN_MEMORY, Disk, segment_bytes, streamed_cost
from divisible.planning.interpolation import interpolate, sort_profiles
from divisible.planning.network import Network
from divisible.planning.optimizer_state import check_optimizer
from divisible.planning.per_rank import PerRank, spread_memory
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.planning.recomputed_layers import recomputed_profile
from divisible.planning.shares import integer_shares
from divisible.planning.unequal_replicas import microbatches_of_largest
from divisible.planning.units import format_bytes, parse_bytes
from divisible.schedules.catalogue import create
from divisible.schedules.recomputation import recompute
from divisible.streaming.directories import usable_directory
from divisible.streaming.disk_speed import measure_disk
from divisible.streaming.model_weights import LayerWeights, put_on_disk, weights_of
from divisible.streaming.report import RankMemory, StreamedLayer, StreamReport


def stream(
    model: Divisible,
    *,
    memory: PerRank | str | None = None,
    directory: str | os.PathLike | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    plan: Plan | None = None,
    optimizer: chainer.GradientMethod | None = None,
    disk: Disk | None = None,
    show: bool = True,
) -> StreamReport:
    """Puts as many weights of layers on disk as are needed for the rest to fit.

    Every such layer becomes a :class:`Streamed` in its place. Paths of parameters,
    initial weights and snapshots stay the same. All links within a ``Chain`` that is a
    layer are streamed, or none. Without ``plan`` the model is for one rank. With a
    plan, each rank's layers are chosen by its memory. Nothing is allocated, so all
    ranks call this alike, before they divide the model.

    Args:
        model (Divisible): A model built in :func:`~divisible.deferred_init` and not
            divided yet; changed.
        memory: Bytes that a rank may use, or text such as ``'4GiB'``; one for all or
            one for each rank. By default the memory in the plan's conditions.
        directory: Directory of the files; see :class:`Streamed`.
        profile: Profile of the model. It has the memory of activations, and the
            computation times that can hide those of the disk. Without a profile the
            largest layers are streamed first, and activations do not count.
        plan: Plan with the cuts and, for the memory of activations, the schedule and
            microbatches. If it names layers to stream, as a plan of
            :func:`~divisible.best_plan` with a disk does, these are streamed. The
            minibatch is the plan's, or that of the largest profile if the plan has
            none.
        optimizer: Optimizer whose state counts. By default the state is the one in
            ``profile``, or none.
        disk: Bandwidths of the disk. By default those in the plan's conditions. Without
            these, and with a profile, they are measured in ``directory``.
        show (bool): Whether to print the table.

    Returns:
        StreamReport: The choice, and the memory that is needed.

    Raises:
        MemoryLimitError: If the rest does not fit, whatever is streamed. The message
            has the ranks and the bytes. The model is unchanged.
        StoreError: If arrays of layers are in memory already, or ``directory`` cannot
            be used.
        TypeError: If ``model`` is no model, ``optimizer`` no optimizer, or neither
            ``memory`` nor the plan has the memory of a rank.
        ValueError: If an argument is out of range, or belongs to another model.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> from divisible import deferred_init
        >>> with deferred_init(seed=0):
        ...     model = Divisible(
        ...         L.Linear(4000, 4000), F.relu, L.Linear(4000, 100), L.Linear(100, 9))
        >>> report = stream(model, memory='48MiB', show=False)
        >>> report.streamed
        (0,)
        >>> report.ranks[0].weights // 2**20, report.ranks[0].needed // 2**20
        (125, 19)
        >>> [type(layer).__name__ for layer in model.divide()]
        ['Streamed', 'function', 'Linear', 'Linear']
    """
    if not isinstance(model, Divisible):
        raise TypeError(f"model must be a Divisible, not a {type(model).__name__}")
    check_optimizer(optimizer)
    profiles: list[Profile] = []
    if profile is not None:
        profiles = sort_profiles([profile] if isinstance(profile, Profile) else profile)
        profiles[0].check(model)
    if plan is not None:
        plan.check(model)
    layers, activations = _on_ranks(plan or Plan([0, len(model)]), profiles)
    conditions = None if plan is None else plan.conditions
    limits = _limits_of(plan) if memory is None else _limits(memory, len(layers))
    place = usable_directory(directory)
    weights = weights_of(model, optimizer, profiles[0] if profiles else None)
    seconds: dict[int, float] = {}
    if profiles:
        if disk is None and conditions is not None:
            disk = conditions.machine.disk
        disk = measure_disk(place) if disk is None else disk
        seconds = _seconds(profiles, weights, disk, plan)
    parts = [
        _Part({i: weights[i] for i in positions}, limit, held)
        for positions, limit, held in zip(layers, limits, activations)
    ]
    for part in parts:
        if plan is not None and plan.streamed:
            part.take(plan.streamed)
        else:
            part.choose(seconds)
    _check_room(parts)
    rooms = {i: part.room for part in parts for i in sorted(part.chosen)}
    report = StreamReport(
        _streamed_layers(model, weights, rooms, seconds),
        tuple(part.memory for part in parts),
        str(place),
        disk,
    )
    put_on_disk(model, rooms, directory)
    if show:
        print(report)
        if conditions is not None:
            print(f"the plan is for {conditions}")
    return report


def _streamed_layers(
    model: Divisible,
    weights: Sequence[LayerWeights],
    chosen: Collection[int],
    seconds: Mapping[int, float],
) -> tuple[StreamedLayer, ...]:
    """Returns the rows of the report, for the layers that have weights."""
    return tuple(
        StreamedLayer(
            position=i,
            name=title(model.model_layers[i]),
            n_bytes=each.n_bytes,
            is_streamed=i in chosen,
            seconds=seconds.get(i) if i in chosen else None,
            reason=each.reason,
        )
        for i, each in enumerate(weights)
        if each.n_bytes
    )


def _limits(memory: PerRank | str, n_ranks: int) -> np.ndarray:
    if isinstance(memory, str):
        memory = parse_bytes(memory)
    elif isinstance(memory, (list, tuple)):
        memory = [parse_bytes(m) if isinstance(m, str) else m for m in memory]
    return spread_memory(memory, n_ranks)


def _limits_of(plan: Plan | None) -> np.ndarray:
    """Returns the memory of the ranks of a pipeline in a plan's conditions."""
    machine = (
        None if plan is None or plan.conditions is None else plan.conditions.machine
    )
    if machine is None or machine.memory is None:
        raise TypeError(
            "stream() is not told how much memory a rank may use: give memory, such as"
            " '4GiB', or a plan that was made with it"
        )
    limits = spread_memory(machine.memory, plan.n_ranks)
    return limits.reshape(plan.replicas, -1).min(axis=0)


def _largest_microbatch(profiles: Sequence[Profile], plan: Plan | None) -> int:
    """Returns the number of samples of the largest microbatch of a minibatch."""
    if plan is None:
        return profiles[-1].n_samples
    batch = plan.batch or profiles[-1].n_samples
    parts = None if plan.shares is None else integer_shares(plan.shares, batch)
    m = plan.n_microbatches or 1
    return max(1, microbatches_of_largest(parts, batch, plan.replicas, m)[0])


def _on_ranks(
    plan: Plan, profiles: Sequence[Profile]
) -> tuple[list[list[int]], list[int | None]]:
    """Returns each rank's layers, and the bytes of their activations and work areas."""
    n_ranks = plan.n_stages // plan.stages_per_rank
    # Without a schedule each rank has one microbatch in flight.
    m = (plan.n_microbatches or 1) if plan.schedule else 1
    schedule = create(plan.schedule or "gpipe", plan.n_stages, m, n_ranks)
    schedule = recompute(schedule, plan.recompute)
    layers: list[list[int]] = [[] for _ in range(n_ranks)]
    for number, rank in enumerate(schedule.stage_ranks):
        layers[rank] += range(*plan.range(number))
    if not profiles:
        return layers, [None] * n_ranks
    profile = interpolate(profiles, _largest_microbatch(profiles, plan))
    profile = recomputed_profile(profile, plan.recomputed, plan.cuts)
    fixed = np.zeros(n_ranks)
    sums = profile.sums.stages(plan.cuts)
    np.add.at(fixed, list(schedule.stage_ranks), sums.fixed_bytes)
    links = Network().links(n_ranks)
    model = CostModel.of(schedule, [profile], np.ones(n_ranks), links)
    model = model.waiting_on([place == "disk" for place in plan.hold_in])
    held = model.rank_bytes(plan.cuts) - fixed
    return layers, held.round().astype(int).tolist()


def _seconds(
    profiles: Sequence[Profile],
    weights: Sequence[LayerWeights],
    disk: Disk,
    plan: Plan | None,
) -> dict[int, float]:
    """Returns the extra seconds of a minibatch for each layer, if it is on disk."""
    n_microbatches = 1 if plan is None else plan.n_microbatches or 1
    has_replicas = plan is not None and plan.replicas > 1
    profile = interpolate(profiles, _largest_microbatch(profiles, plan))
    found = {}
    for i, (cost, each) in enumerate(zip(profile.layers, weights)):
        if each.streamable:
            resident = replace(
                cost,
                parameter_bytes=each.streamable,
                streamable_bytes=each.streamable,
                gathered_bytes=each.gathered,
                optimizer_bytes=each.freed - 2 * each.streamable,
            )
            slow = streamed_cost(
                resident, disk, n_microbatches, has_replicas=has_replicas
            )
            found[i] = (slow.seconds - cost.seconds) * n_microbatches
    return found


class _Part:
    """The layers of a rank, some of which are chosen to be on disk."""

    def __init__(
        self, weights: dict[int, LayerWeights], limit: float, activations: int | None
    ) -> None:
        self.weights, self.limit, self.activations = weights, limit, activations
        self.chosen: set[int] = set()

    @property
    def room(self) -> int:
        """Bytes for segments: a part of the memory, or enough for the longest row."""
        longest = max((self.weights[i].row_bytes for i in self.chosen), default=0)
        return int(IN_MEMORY * max(segment_bytes(self.limit), longest))

    @property
    def memory(self) -> RankMemory:
        """The memory of the rank if the chosen layers are on disk."""
        chosen = [self.weights[i] for i in self.chosen]
        whole = sum(each.n_bytes for each in self.weights.values())
        largest = max((each.largest for each in chosen), default=0)
        return RankMemory(
            limit=self.limit,
            weights=whole,
            resident=whole - sum(each.freed for each in chosen),
            activations=self.activations,
            segments=min(self.room, IN_MEMORY * largest),
        )

    @property
    def fits(self) -> bool:
        return self.memory.needed <= self.limit

    def lack(self, rank: int) -> str:
        """Returns text with the bytes that the rank needs, and those that it has."""
        memory = self.memory
        return (
            f"rank {rank} with the layers {min(self.weights)} to {max(self.weights)}"
            f" needs {format_bytes(memory.needed)} of its {format_bytes(self.limit)}"
            f" (weights that stay {format_bytes(memory.resident)}, segments"
            f" {format_bytes(memory.segments)}, activations"
            f" {format_bytes(memory.activations or 0)})"
        )

    def take(self, positions: Sequence[int]) -> None:
        """Uses a given choice.

        Raises:
            ValueError: If some of these layers cannot be on disk.
        """
        self.chosen = set(positions) & set(self.weights)
        for i in self.chosen:
            if not self.weights[i].freed:
                raise ValueError(
                    f"the plan streams layer {i}, but its weights stay in memory:"
                    f" {self.weights[i].reason or 'it has none'}"
                )

    def choose(self, seconds: dict[int, float]) -> None:
        """Chooses the layers with the least extra seconds for each freed byte."""
        able = [i for i, each in self.weights.items() if each.freed]

        def order(i: int) -> tuple:
            freed = self.weights[i].freed
            return seconds.get(i, 0.0) / freed, -freed

        for i in sorted(able, key=order):
            if self.fits:
                break
            self.chosen.add(i)
        if not self.fits:
            return
        for i in sorted(self.chosen, key=order, reverse=True):
            self.chosen.remove(i)
            if not self.fits:
                self.chosen.add(i)


def _check_room(parts: Sequence[_Part]) -> None:
    """Raises an error if some rank's layers do not fit, whatever is on disk."""
    lacking = [part.lack(number) for number, part in enumerate(parts) if not part.fits]
    if lacking:
        raise MemoryLimitError(
            f"whatever is streamed, {'; '.join(lacking)}. Give more memory, more ranks,"
            f" or smaller microbatches"
        )
