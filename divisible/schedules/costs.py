"""Costs of stages and of the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Union

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.records import shown
from divisible.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    RECOMPUTE,
    WEIGHT,
)
from divisible.schedules.table import Table

#: A number for all stages or edges, or one for each.
Values = Union[float, Sequence[float], np.ndarray]


@dataclass(frozen=True, eq=False)
class Costs:
    """The costs of the stages and of the edges between them, in seconds.

    A value is a number for all stages (or edges), or a sequence with one for each.
    Times of stages may also have the shape ``(n_stages, n_microbatches)``, for
    microbatches of unequal size. Edge ``e`` joins the stages ``e`` and ``e + 1``; an
    edge between stages on one rank costs nothing.

    Attributes:
        forward: Time of F, per stage.
        backward_input: Time of I, per stage.
        backward_weight: Time of W, per stage. B takes I + W.
        transfer: Bytes over bandwidth of one message, per edge, in either direction.
        transfer_backward: Bytes over bandwidth of a message of gradients, per edge;
            ``None`` for as many as ``transfer``.
        latency: Time of a message in addition to ``transfer``, per edge.
        activation_bytes: Bytes held per microbatch from F to B or I, per stage.
        pending_bytes: Bytes held per microbatch from I to W, per stage.
        checkpoint_bytes: Bytes held per microbatch from F to R where a forward is
            recomputed, per stage. R takes as long as F.
        write: Time to write the activations of a microbatch to a disk, per stage. Where
            ``write`` or ``read`` is not 0, microbatches wait on the disk for their
            backward.
        read: Time to read the activations of a microbatch again, per stage.
        forward_saved: Time of F that each microbatch of a group saves but the first,
            per stage: weights are read once. At most ``forward``.
        input_saved: Time of I that they save, at most ``backward_input``.
        weight_saved: Time of W that they save, at most ``backward_weight``.
        update: Time of the update of a stage's parameters, once in each minibatch, per
            stage.
        narrow: Time to round what a microbatch holds to fewer bits, at the end of F,
            per stage. A microbatch whose backward is the next action is not rounded.
        widen: Time to widen it again, at the beginning of B, I or R, per stage.
        activation_saved: Bytes of ``activation_bytes`` that are saved between these
            times, per stage.
        checkpoint_saved: Bytes of ``checkpoint_bytes`` that are saved, per stage.
        weight_bytes: Bytes of a stage's weights, per stage. They count once for each
            copy that a schedule with two weight versions holds besides
            (`divisible.schedules.weight_versions`).
        coding_forward: Time that each F takes besides, per stage, to code the messages
            before and after it in narrower numbers. R takes none.
        coding_backward: Time that each B or I takes besides for that, per stage.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If a value is negative or not finite.

    Example:
        >>> costs = Costs(forward=[1.0, 1.5], backward_input=1.0, backward_weight=1.0)
        >>> costs.n_stages
        2
        >>> from divisible.schedules import Schedule
        >>> costs = Costs(1.0, 1.0, 1.0, weight_saved=0.5)
        >>> costs.durations_of(Schedule([["0F0", "0F1", "0I0", "0I1", "0W0-1"]]))
        array([1. , 1. , 1. , 1. , 1.5])
    """

    forward: Values
    backward_input: Values
    backward_weight: Values
    transfer: Values = 0.0
    latency: Values = 0.0
    activation_bytes: Values = 0
    pending_bytes: Values = 0
    checkpoint_bytes: Values = 0
    write: Values = 0.0
    read: Values = 0.0
    forward_saved: Values = 0.0
    input_saved: Values = 0.0
    weight_saved: Values = 0.0
    update: Values = 0.0
    narrow: Values = 0.0
    widen: Values = 0.0
    activation_saved: Values = 0
    checkpoint_saved: Values = 0
    weight_bytes: Values = 0
    transfer_backward: Values | None = None
    coding_forward: Values = 0.0
    coding_backward: Values = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, given = f"Costs.{field.name}", getattr(self, field.name)
            if given is None and field.name == "transfer_backward":
                continue
            values = numbers(name, given)
            if not np.all(np.isfinite(values) & (values >= 0)):
                raise ValueError(
                    f"{name} must be finite and not negative, not {shown(values)}"
                )

    @property
    def n_stages(self) -> int | None:
        """The number of stages, or ``None`` if every value serves all stages."""
        for name in _PER_STAGE:
            if np.ndim(getattr(self, name)):
                return len(getattr(self, name))
        for name in _PER_EDGE:
            if np.ndim(getattr(self, name)):
                return len(getattr(self, name)) + 1
        return None

    def durations(self, n_stages: int, n_microbatches: int) -> np.ndarray:
        """Returns the computation time of each kind, stage and microbatch.

        Args:
            n_stages: Number of stages.
            n_microbatches: Number of microbatches.

        Returns:
            Seconds of shape ``(5, n_stages, n_microbatches)``, the kinds in the order
            of `divisible.schedules.actions.KINDS`.

        Raises:
            ValueError: If a value has another shape.
        """
        shape = n_stages, n_microbatches
        first, second, third = (self._spread(name, shape) for name in _PER_STAGE[:3])
        coding, coding_back = (self._spread(name, shape) for name in _CODING)
        table = np.empty((len(KINDS), *shape))
        table[FORWARD], table[RECOMPUTE] = first + coding, first
        table[BACKWARD] = second + third + coding_back
        table[INPUT] = second + coding_back
        table[WEIGHT] = third
        return table

    def durations_of(self, schedule: Table) -> np.ndarray:
        """Returns the computation time of each action of a schedule.

        Args:
            schedule: Any schedule.

        Returns:
            Seconds of shape ``(n_actions,)``.

        Raises:
            ValueError: If a value has another shape.
        """
        table = self.durations(schedule.n_stages, schedule.n_microbatches)
        if schedule.count.max(initial=1) == 1:
            return table[schedule.kind, schedule.stage, schedule.microbatch]
        action, microbatch = schedule.members
        kind, stage = schedule.kind, schedule.stage
        seconds = table[kind[action], stage[action], microbatch]
        saved = self.saved(schedule.n_stages)[kind, stage] * (schedule.count - 1)
        return np.maximum(np.bincount(action, seconds) - saved, 0.0)

    def saved(self, n_stages: int) -> np.ndarray:
        """Returns the time that each microbatch of a group saves but the first.

        Args:
            n_stages: Number of stages.

        Returns:
            Seconds of shape ``(5, n_stages)``, the kinds in the order of
            `divisible.schedules.actions.KINDS`.

        Raises:
            ValueError: If a value has another shape.
        """
        first, second, third = (self._spread(n, (n_stages,)) for n in _PER_STAGE[8:11])
        table = np.empty((len(KINDS), n_stages))
        table[FORWARD] = table[RECOMPUTE] = first
        table[BACKWARD] = second + third
        table[INPUT] = second
        table[WEIGHT] = third
        return table

    def edges(
        self, n_stages: int, is_forward: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the message times of each edge in one direction.

        Args:
            n_stages: Number of stages.
            is_forward: Whether messages have activations, not gradients.

        Returns:
            ``transfer`` and ``latency`` in seconds, of shape ``(n_stages - 1,)``.

        Raises:
            ValueError: If a value has another shape.
        """
        name = "transfer"
        if not is_forward and self.transfer_backward is not None:
            name = "transfer_backward"
        shape = (n_stages - 1,)
        return self._spread(name, shape), self._spread("latency", shape)

    def units(self, n_stages: int) -> tuple[np.ndarray, ...]:
        """Returns the sizes for each stage.

        Args:
            n_stages: Number of stages.

        Returns:
            ``activation_bytes``, ``pending_bytes`` and ``checkpoint_bytes``, of shape
            ``(n_stages,)``.

        Raises:
            ValueError: If a value has another shape.
        """
        return tuple(self._spread(name, (n_stages,)) for name in _PER_STAGE[3:6])

    def disk(self, n_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of the disk for each stage.

        Args:
            n_stages: Number of stages.

        Returns:
            ``write`` and ``read`` in seconds, of shape ``(n_stages,)``.
        """
        write, read = (self._spread(name, (n_stages,)) for name in _PER_STAGE[6:8])
        return write, read

    def conversion(self, n_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of rounding and widening for each stage.

        Args:
            n_stages: Number of stages.

        Returns:
            ``narrow`` and ``widen`` in seconds, of shape ``(n_stages,)``.
        """
        return tuple(self._spread(name, (n_stages,)) for name in _PER_STAGE[12:14])

    def saved_bytes(self, n_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes that fewer bits save for each stage.

        Args:
            n_stages: Number of stages.

        Returns:
            ``activation_saved`` and ``checkpoint_saved``, of shape ``(n_stages,)``.
        """
        return tuple(self._spread(name, (n_stages,)) for name in _PER_STAGE[14:16])

    def update_seconds(self, n_stages: int) -> np.ndarray:
        """Returns the time of the update of each stage.

        Args:
            n_stages: Number of stages.

        Returns:
            Seconds of shape ``(n_stages,)``.

        Raises:
            ValueError: If a value has another shape.
        """
        return self._spread("update", (n_stages,))

    def copy_bytes(self, n_stages: int) -> np.ndarray:
        """Returns ``weight_bytes`` of each stage, as an array of shape ``(n_stages,)``.

        Args:
            n_stages: Number of stages.

        Raises:
            ValueError: If the value has another shape.
        """
        return self._spread("weight_bytes", (n_stages,))

    def repeated(self, n_minibatches: int) -> Costs:
        """Returns the costs of several equal minibatches.

        Args:
            n_minibatches: Number of minibatches.

        Returns:
            The costs, with times of shape ``(n_stages, n_minibatches *
            n_microbatches)`` where they had one for each microbatch.
        """
        if n_minibatches == 1:
            return self
        each = {name: np.asarray(getattr(self, name)) for name in _PER_STAGE}
        tiled = {
            name: np.tile(values, (1, n_minibatches))
            for name, values in each.items()
            if values.ndim == 2
        }
        return replace(self, **tiled)

    def _spread(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = np.asarray(getattr(self, name), float)
        if values.ndim == 0 or values.shape == shape:
            return np.broadcast_to(values, shape)
        if values.shape == shape[:1]:
            return np.broadcast_to(values[:, None], shape)
        what = "stages" if name in _PER_STAGE else "edges between stages"
        raise ValueError(
            f"Costs.{name} has {amount(values)}, but there are {shape[0]} {what}: give"
            f" one number for all or one for each"
        )


def equal_layers(
    schedule: Table,
    forward: float,
    backward_input: float,
    backward_weight: float,
    **edges: Values,
) -> Costs:
    """Returns the costs of stages of equally many equal layers.

    Each rank has as many layers as any other, and its stages share them. So schedules
    with one stage on a rank and with several compare.

    Args:
        schedule: The schedule.
        forward: Seconds of F of all layers of a rank.
        backward_input: Seconds of I of all layers of a rank.
        backward_weight: Seconds of W of all layers of a rank.
        **edges: Costs of the edges, such as ``latency``.

    Example:
        >>> from divisible.schedules import zero_bubble_v
        >>> equal_layers(zero_bubble_v(2, 4), 1.0, 1.0, 3.0).backward_weight
        1.5
    """
    share = schedule.n_ranks / schedule.n_stages
    times = forward, backward_input, backward_weight
    return Costs(*(share * each for each in times), **edges)


_PER_STAGE = (
    "forward",
    "backward_input",
    "backward_weight",
    "activation_bytes",
    "pending_bytes",
    "checkpoint_bytes",
    "write",
    "read",
    "forward_saved",
    "input_saved",
    "weight_saved",
    "update",
    "narrow",
    "widen",
    "activation_saved",
    "checkpoint_saved",
    "weight_bytes",
    "coding_forward",
    "coding_backward",
)
_CODING = _PER_STAGE[-2:]
_PER_EDGE = ("transfer", "latency", "transfer_backward")
