"""The fields of a plan, checked, as they may come from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divisible.communication.wire import check_wire_dtype
from divisible.planning.conditions import Conditions
from divisible.planning.expected_costs import ExchangePlan, StagePlan
from divisible.planning.message_plan import MessagePlan
from divisible.planning.retained_arrays import HOLD_DTYPES
from divisible.planning.shares import integer_shares
from divisible.planning.units import count
from divisible.records import (
    from_fields,
    listed,
    plain_integer,
    plain_number,
    plain_text,
    shown,
    take_kind,
)

#: Where microbatches may wait for their backward.
HOLD_IN = ("memory", "disk")
#: The names of fields in files of earlier versions.
_FORMER_NAMES = {"checkpoint": "recompute", "wire_dtype": "exchange_dtype"}


def positions_of_cuts(cuts: Any) -> list[int]:
    """Returns cuts as plain integers, and refuses those that make no stages."""
    found = [
        plain_integer(f"position {i} of cuts", cut)
        for i, cut in enumerate(listed("cuts", cuts))
    ]
    if len(found) < 2 or found[0] != 0:
        raise ValueError(
            f"cuts {found}: expected 0, the positions to cut at, and the number of"
            f" layers, such as [0, 3, 5] for layers 0 to 2 and 3 to 4"
        )
    for a, b in zip(found, found[1:]):
        if a >= b:
            raise ValueError(
                f"cuts {found}: the stage from {a} to {b} has no layers; cuts must grow"
            )
    return found


def positive_count(name: str, value: Any) -> int:
    """Returns a positive number as a plain integer."""
    try:
        number = plain_integer(name, value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a positive integer, not {shown(value)}")
    return number


def optional_number(name: str, value: Any) -> float | None:
    """Returns an optional number as a plain one."""
    return None if value is None else plain_number(name, value, "Leave it out")


def replica_shares(shares: Any, replicas: int) -> list[float] | None:
    """Returns the shares of replicas; ``None`` for equal ones."""
    if shares is None:
        return None
    found = list(listed("shares", shares))
    if len(found) != replicas:
        raise ValueError(
            f"shares {shown(found)} are {len(found)}, but there are"
            f" {count(replicas, 'replica')}: give each one"
        )
    # Raises an error for a value that is not a share.
    integer_shares(found, len(found))
    return found


def sizes_of_groups(sizes: Any, n_stages: int) -> tuple[int, ...]:
    """Returns the sizes of the stages' groups; none if all are 1."""
    found = [
        positive_count(f"stage {i} of stage_groups", size)
        for i, size in enumerate(listed("stage_groups", sizes))
    ]
    if found and len(found) != n_stages:
        raise ValueError(
            f"stage_groups {found} are for {count(len(found), 'stage')}, but there are"
            f" {n_stages}: give one number for each"
        )
    return tuple(found) if max(found, default=1) > 1 else ()


def descriptions(
    name: str, values: Any, n: int, cuts: Sequence[int]
) -> tuple[Any, ...] | None:
    """Returns a description of all layers, or of all stages; ``None`` if there is none.

    Args:
        name: The name of the field, ``'layers'`` or ``'stages'``.
        values: Its values.
        n: Number of stages or layers in the cuts.
        cuts: The cuts, for the message.
    """
    if values is None:
        return None
    found = tuple(listed(name, values))
    if len(found) != n:
        raise ValueError(
            f"cuts {cuts} have {n} {name}, but {name} describes {len(found)}"
        )
    if name == "layers":
        for position, layer in enumerate(found):
            plain_text(f"layer {position} of layers", layer)
    return found


def check_exchange(exchange_dtype: Any, error_feedback: Any) -> None:
    """Refuses a value that is not a dtype on the wire, or not true or false."""
    if exchange_dtype is not None:
        check_wire_dtype("exchange_dtype", exchange_dtype)
    if not isinstance(error_feedback, bool):
        raise TypeError(
            f"error_feedback must be true or false, not {shown(error_feedback)}"
        )


def message_plans(messages: Any, n_stages: int) -> tuple[MessagePlan, ...]:
    """Returns the dtypes of messages over each edge; none to narrow no message."""
    found = tuple(listed("messages", messages))
    for edge, one in enumerate(found):
        if not isinstance(one, MessagePlan):
            raise TypeError(
                f"edge {edge} of messages must be a MessagePlan, not {shown(one)}"
            )
    if len(found) not in (0, n_stages - 1):
        raise ValueError(
            f"messages are for {count(len(found), 'edge')}, but there are"
            f" {n_stages - 1} between {count(n_stages, 'stage')}: give one for each"
        )
    return found


def check_conditions(conditions: Any) -> None:
    """Refuses a value that is neither conditions nor ``None``."""
    if not (conditions is None or isinstance(conditions, Conditions)):
        raise TypeError(f"conditions must be Conditions, not {shown(conditions)}")


def chains(name: str, values: Any, n_layers: int) -> tuple[tuple[int, int], ...]:
    """Returns chains of layers as pairs of positions in the model."""
    found = []
    for i, chain in enumerate(listed(name, values)):
        what = f"chain {i} of {name}"
        ends = [plain_integer(what, end) for end in listed(what, chain)]
        if len(ends) != 2 or not 0 <= ends[0] < ends[1] <= n_layers:
            raise ValueError(
                f"{what} is {shown(chain)}: expected its first position"
                f" and the one after its last, of {count(n_layers, 'layer')}"
            )
        found.append((ends[0], ends[1]))
    return tuple(found)


def runs(name: str, values: Any, n_layers: int) -> tuple[tuple[int, int], ...]:
    """Returns chains of layers, sorted, and refuses those that overlap."""
    found = sorted(chains(name, values, n_layers))
    for (_, end), (start, _) in zip(found, found[1:]):
        if start < end:
            raise ValueError(
                f"{name} has layer {start} in two runs: {found}. Give each layer once"
            )
    return tuple(found)


def places(hold_in: Any, n_ranks: int) -> tuple[str, ...]:
    """Returns where the microbatches of each rank wait; in memory by default."""
    found = tuple(listed("hold_in", hold_in))
    if any(place not in HOLD_IN for place in found):
        raise ValueError(
            f"hold_in is {shown(found)}: expected {' or '.join(map(repr, HOLD_IN))}"
            f" for each rank"
        )
    if len(found) not in (0, n_ranks):
        raise ValueError(
            f"hold_in {shown(found)} is for {count(len(found), 'rank')}, but a"
            f" pipeline has {n_ranks}"
        )
    return found or ("memory",) * n_ranks


def check_hold_dtype(name: str, value: Any) -> None:
    """Refuses a value that is not a dtype for activations that wait."""
    if not (isinstance(value, str) and value in HOLD_DTYPES):
        raise ValueError(
            f"{name} must be {' or '.join(map(repr, HOLD_DTYPES))}, not {shown(value)}"
        )


def positions(streamed: Any, n_layers: int) -> tuple[int, ...]:
    """Returns positions of layers in the model."""
    found = tuple(
        plain_integer(f"position {i} of streamed", position)
        for i, position in enumerate(listed("streamed", streamed))
    )
    if any(not 0 <= position < n_layers for position in found):
        raise ValueError(
            f"streamed is {shown(found)}: expected positions of"
            f" {count(n_layers, 'layer')}"
        )
    return tuple(sorted(set(found)))


def from_json(content: dict[str, Any], folder: str) -> dict[str, Any]:
    """Returns the fields of a plan, from those of its file.

    Args:
        content: The fields in the file.
        folder: The folder of the file; names of profiles are relative to it.

    Raises:
        ValueError: If the file is of another kind, or a field is something else.
    """
    found = dict(content)
    take_kind(found, "plan", default="plan")
    for before, name in _FORMER_NAMES.items():
        if before in found:
            found.setdefault(name, found.pop(before))
    if "alternatives" in found:
        raise ValueError("alternatives are not part of a file")
    rows = found.get("stages")
    if isinstance(rows, list):
        found["stages"] = [
            from_fields(StagePlan, row, f"stage {i}") for i, row in enumerate(rows)
        ]
    rows = found.get("messages")
    if isinstance(rows, list):
        found["messages"] = [
            from_fields(MessagePlan, row, f"edge {i} of messages")
            for i, row in enumerate(rows)
        ]
    if found.get("exchange") is not None:
        found["exchange"] = from_fields(ExchangePlan, found["exchange"], "exchange")
    if found.get("conditions") is not None:
        found["conditions"] = Conditions.from_json(found["conditions"], folder)
    return found
