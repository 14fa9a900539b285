"""The arguments of a pipeline that one rank can check alone."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex

import chainer
import numpy as np

from divisible import Divisible
from divisible.carried_state import carrying
from divisible.communication.errors import check_timeout
from divisible.communication.narrowing import Pair, pair_of
from divisible.communication.wire import WIRE
from divisible.dtypes import floating_dtypes
from divisible.number_lists import as_list
from divisible.planning.message_plan import WHOLE, as_plans, narrowed_pairs
from divisible.planning.plan_fields import HOLD_IN, check_hold_dtype
from divisible.planning.retained_arrays import HALF
from divisible.schedules.schedule import Schedule
from divisible.streaming.held_store import check_directory
from mixed_precision import LossScale
from pipeline.start.recomputed_runs import split_recompute

#: A chain of layers: the position of its first layer, and the one behind its last.
Span = tuple[int, int]
AUTO, NONE = "auto", "none"
#: Ways of messages between stages: two-sided, one-sided, and for comparison.
TRANSPORTS = ("mpi", "rma", "chainermn")


class Arguments(NamedTuple):
    """The arguments of :class:`~pipeline.Pipeline`, without the communicator.

    Until :meth:`checked` is called, they are of whatever type the user has given.
    """

    stages: Sequence[Divisible]
    n_microbatches: int
    schedule: str | Schedule
    lossfun: Callable
    accfun: Callable | None
    transport: str
    message_dtype: Any
    timeout: float
    recompute: str | Sequence[int | Span]
    seed: int
    deferred_batch_norm: bool
    loss_scale: Any
    hold_in: str | os.PathLike
    hold_dtype: str
    fuse: str | Sequence[Span]
    weight_groups: int | str
    stage_groups: Sequence[int] = ()
    edge_dtypes: Sequence[Pair] = ()
    recomputed: Sequence[Span] = ()
    overlap_minibatches: bool | str = AUTO

    def checked(self) -> Arguments:
        """Returns the arguments with a list of stages, and with plain numbers.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range.
        """
        stages = check_stages(self.stages)
        message_dtype = (
            None if self.message_dtype is None else pair_of(self.message_dtype)
        )
        check_transport(self.transport, stages[0].device)
        pairs = self.edge_dtypes if message_dtype is None else [message_dtype]
        check_message_dtypes(pairs, self.transport, stages)
        check_losses(self.lossfun, self.accfun)
        check_loss_scale(self.loss_scale)
        check_hold(self.hold_in, stages[0].device)
        check_hold_on(self.hold_dtype, stages[0].device)
        check_timeout(self.timeout)
        n_layers = len(stages[0].model_layers)
        when, runs = split_recompute(self.recompute, n_layers)
        return self._replace(
            stages=stages,
            message_dtype=message_dtype,
            recompute=when,
            recomputed=runs or self.recomputed,
            n_microbatches=count_microbatches(self.schedule, self.n_microbatches),
            seed=check_seed(self.seed),
            fuse=check_fuse(self.fuse, n_layers),
            weight_groups=check_groups(self.weight_groups),
            overlap_minibatches=check_overlap(self.overlap_minibatches),
        )

    def dtypes_over(self, n_edges: int) -> Sequence[Pair]:
        """Returns the dtypes of messages over each edge; none if no edge is narrowed.

        Args:
            n_edges: Number of edges between neighbouring stages.
        """
        if self.message_dtype is None:
            return self.edge_dtypes
        return narrowed_pairs(as_plans([self.message_dtype] * n_edges))

    def to_compare(self, loss_names: Sequence[str]) -> dict[str, str]:
        """Returns the arguments that must be equal on all ranks, as texts, by name.

        Args:
            loss_names: Names of the values of ``lossfun`` and ``accfun``.
        """
        scale = self.loss_scale
        return {
            "n_microbatches": str(self.n_microbatches),
            "recompute": self.recompute,
            "recomputed": str(self.recomputed),
            "schedule": str(self.schedule),
            "transport": self.transport,
            "message_dtype": str(self.message_dtype),
            "edge_dtypes": str(self.edge_dtypes),
            "hold_dtype": self.hold_dtype,
            "seed": str(self.seed),
            "deferred_batch_norm": str(bool(self.deferred_batch_norm)),
            "what lossfun and accfun give": ", ".join(loss_names),
            "loss_scale": str(scale and float(scale)),
            "fuse": str(self.fuse),
            "weight_groups": str(self.weight_groups),
            "stage_groups": str(self.stage_groups),
            "overlap_minibatches": str(self.overlap_minibatches),
        }


def check_stages(stage: Divisible | Sequence[Divisible]) -> list[Divisible]:
    """Returns a rank's stages in the order of the model."""
    mine = as_list(stage)
    for part in mine:
        if not isinstance(part, Divisible):
            raise TypeError(
                f"stage must be a Divisible or a list of them, not"
                f" {type(part).__name__}"
            )
    if not mine:
        raise ValueError(
            "stage is an empty list: give this rank one stage at least, as of"
            " model.divide(start, end)"
        )
    for part in mine:
        if part.model_layers != mine[0].model_layers:
            raise ValueError(
                "the stages of this rank are parts of different models: divide one"
                " model for all of them"
            )
        part.check_cuttable()
        _refuse_states(part)
    return sorted(mine, key=lambda part: part.layer_range)


def _refuse_states(part: Divisible) -> None:
    """Refuses layers that keep a state from one call to the next, such as L.LSTM."""
    for position, layer in enumerate(part, start=part.layer_range[0]):
        if _keeps_state(layer):
            raise TypeError(
                f"layer {position}, {type(layer).__name__}, has a method reset_state,"
                f" so it keeps a state from one call to the next. Here every microbatch"
                f" is a call, with other samples. Put it into a layer that takes whole"
                f" sequences and resets it first, without a method of that name; or use"
                f" L.NStepLSTM and the like; or declare by carry_state() what is to go"
                f" on from minibatch to minibatch"
            )


def _keeps_state(layer: Any) -> bool:
    if isinstance(layer, (chainer.Sequential, Divisible)):
        return any(map(_keeps_state, layer))
    return hasattr(layer, "reset_state") and not any(carrying([layer]))


def check_transport(transport: str, device: chainer.backend.Device) -> None:
    """Refuses transports that do not exist, or not for a device."""
    if transport not in TRANSPORTS:
        names = ", ".join(map(repr, TRANSPORTS))
        raise ValueError(f"transport must be one of {names}, not {transport!r}")
    if transport != "mpi" and device.xp is not np:
        raise ValueError(
            f"the stage is on {device}, but the transport {transport!r} is for host"
            f" memory only: use 'mpi'"
        )


def check_message_dtypes(
    pairs: Sequence[Pair], transport: str, stages: Sequence[Divisible]
) -> None:
    """Refuses dtypes of messages that do not go with a transport, device or model."""
    names = {name for pair in pairs for name in pair} - {WHOLE}
    if not names:
        return
    if transport == "chainermn":
        raise ValueError("message_dtype needs the transport 'mpi' or 'rma'")
    device, wide = stages[0].device, np.dtype(np.float64)
    for name in sorted(names):
        if device.xp is not np and not WIRE[name].has_kernels:
            raise ValueError(
                f"message_dtype {name!r} has no kernels for a GPU, and the stage is on"
                f" {device}: use 'int8', or leave the stage on the CPU"
            )
    if any(wide in floating_dtypes(stage) for stage in stages):
        raise ValueError(
            f"message_dtype is {', '.join(sorted(names))}, which rounds from float32,"
            f" but the stage has parameters of float64: leave message_dtype out, or use"
            f" float32"
        )


def check_hold(hold_in: str | os.PathLike, device: chainer.backend.Device) -> None:
    """Refuses places to hold microbatches that do not exist, or cannot be written."""
    if hold_in == "memory":
        return
    if hold_in == "host":
        raise ValueError(
            f"hold_in='host' does not work yet: it would hold a GPU's activations in"
            f" the memory of its host. The stage is on {device}: use 'memory' or, with"
            f" NumPy's arrays, 'disk'"
        )
    is_path = isinstance(hold_in, os.PathLike)
    # A word that is no directory is one of the words, misspelt.
    if not is_path and not (isinstance(hold_in, str) and _names_a_place(hold_in)):
        places = ", ".join(map(repr, HOLD_IN))
        raise ValueError(f"hold_in must be {places} or a directory, not {hold_in!r}")
    if device.xp is not np:
        raise ValueError(
            f"the stage is on {device}, but hold_in={str(hold_in)!r} is for stages in"
            f" host memory only: use 'memory'"
        )
    check_directory(directory_of(hold_in))


def check_hold_on(hold_dtype: str, device: chainer.backend.Device) -> None:
    """Refuses dtypes of held activations that do not exist, or not on a device."""
    check_hold_dtype("hold_dtype", hold_dtype)
    if hold_dtype == HALF and device.xp is not np:
        raise ValueError(
            f"the stage is on {device}, but hold_dtype={hold_dtype!r} is for stages in"
            f" host memory: leave it out"
        )


def _names_a_place(hold_in: str) -> bool:
    return hold_in in HOLD_IN or os.sep in hold_in or os.path.isdir(hold_in)


def directory_of(hold_in: str | os.PathLike | None) -> str | os.PathLike | None:
    """Returns the directory that ``hold_in`` is; ``None`` if it is another word."""
    return None if hold_in is None or hold_in in HOLD_IN else hold_in


def place_of(hold_in: str | os.PathLike) -> str:
    """Returns ``'memory'`` or ``'disk'``, as plans say it."""
    return "memory" if hold_in == "memory" else "disk"


def check_seed(seed: int) -> int:
    """Returns a seed that random numbers can be made from."""
    number = operator.index(seed)
    if not 0 <= number < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {number}")
    return number


def count_microbatches(schedule: str | Schedule, n_microbatches: int | None) -> int:
    """Returns the number of microbatches; refuses a schedule that cannot train."""
    if not isinstance(schedule, Schedule):
        if n_microbatches is None:
            raise ValueError(
                "n_microbatches is missing: give it, or a Schedule or plan with it"
            )
        if not isinstance(n_microbatches, SupportsIndex):
            raise TypeError(f"n_microbatches must be an int, not {n_microbatches!r}")
        if n_microbatches < 1:
            raise ValueError(f"n_microbatches must be at least 1, not {n_microbatches}")
        return operator.index(n_microbatches)
    if n_microbatches not in (None, schedule.n_microbatches):
        raise ValueError(
            f"n_microbatches is {n_microbatches}, but the schedule has"
            f" {schedule.n_microbatches}"
        )
    schedule.validate()
    if len(schedule) == len(schedule.forward_only()):
        raise ValueError(
            f"the schedule {schedule.name!r} has no backward, so it cannot train: give"
            f" one with B, or I and W"
        )
    return schedule.n_microbatches


def check_losses(lossfun: Any, accfun: Any) -> None:
    """Refuses functions that cannot be called; ``accfun`` may be ``None``."""
    for name, function in (("lossfun", lossfun), ("accfun", accfun)):
        if not (callable(function) or (name == "accfun" and function is None)):
            raise TypeError(f"{name} must be a function or a link, not {function!r}")


def check_loss_scale(loss_scale: Any) -> None:
    """Refuses a loss scale that is not a positive number, or has no value."""
    if loss_scale is None:
        return
    try:
        value = float(loss_scale)
    except (TypeError, ValueError):
        raise TypeError(
            f"loss_scale must be a number or an optimizer's loss_scale, not"
            f" {loss_scale!r}"
        ) from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"loss_scale must be positive and finite, not {value}")


def check_fuse(fuse: Any, n_layers: int) -> str | tuple[Span, ...]:
    """Returns the chains to fuse, as sorted pairs of numbers if they are given.

    Args:
        fuse: The argument of a pipeline.
        n_layers: Number of layers of the model.

    Raises:
        ValueError: If ``fuse`` is neither ``'auto'``, nor ``'none'``, nor such pairs
            within the model.
    """
    if isinstance(fuse, str) and fuse in (AUTO, NONE):
        return fuse
    with contextlib.suppress(TypeError, ValueError):
        spans = tuple(sorted((int(start), int(end)) for start, end in fuse))
        if all(0 <= start < end <= n_layers for start, end in spans):
            return spans
    raise ValueError(
        f"fuse must be 'auto', 'none' or chains as a plan has them, each (first, after"
        f" the last) of the {n_layers} layers, not {fuse!r}"
    )


def check_groups(weight_groups: Any) -> int | str:
    """Returns the number of microbatches in a group of weight gradients, or 'auto'.

    Raises:
        TypeError: If it is neither.
        ValueError: If the number is less than 1.
    """
    if isinstance(weight_groups, str) and weight_groups == AUTO:
        return AUTO
    if isinstance(weight_groups, (str, bool)) or not isinstance(
        weight_groups, SupportsIndex
    ):
        raise TypeError(
            f"weight_groups must be 'auto' or an int, not {weight_groups!r}"
        )
    number = operator.index(weight_groups)
    if number < 1:
        raise ValueError(f"weight_groups must be at least 1, not {number}")
    return number


def waiting_features(stage: Divisible, loss_scale: Any) -> dict[str, bool]:
    """Returns whether each feature is used that makes steps wait for all ranks.

    The words are those of `pipeline.step.overlap`, without the features that depend on
    the cuts or on the replicas.

    Args:
        stage (Divisible): The model, or a stage of it.
        loss_scale: The argument ``loss_scale``.
    """
    return {
        "carry_state": bool(stage.carried_states),
        "loss_scale": isinstance(loss_scale, LossScale),
    }


def check_overlap(overlap_minibatches: Any) -> bool | str:
    """Returns whether minibatches overlap: ``True``, ``False`` or ``'auto'``.

    Raises:
        ValueError: If it is another value.
    """
    if overlap_minibatches is True or overlap_minibatches is False:
        return overlap_minibatches
    if isinstance(overlap_minibatches, str) and overlap_minibatches == AUTO:
        return AUTO
    raise ValueError(
        f"overlap_minibatches must be 'auto', True or False, not"
        f" {overlap_minibatches!r}"
    )
