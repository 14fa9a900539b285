"""Compares what ranks have computed with a serial script, by bounds of rounding errors.

A sum of ``n`` numbers has a relative error of about ``sqrt(n) u``, where ``u`` is the
unit roundoff of the dtype. Few sums have more than a small multiple of it (Higham and
Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019). A value of a run
has gone through ``d`` layers in each of ``s`` steps, there and back. So the bound is

    2 d s sqrt(n) u M

for values of the magnitude ``M``, the largest one among those of the same kind. That of
gradients is the one before hooks: a clipped gradient has the errors of the whole one,
and so has the state of an optimizer that adds it up. A mean that a layer reports has
the errors of the numbers that cancel out in it. A product of several kinks or small
deviations may exceed it: see :func:`differences`. Batch normalization of a single
sample divides rounding errors by its small deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from tests.composition import models
from tests.composition.cases import Case, Way
from tests.composition.record import Entry, Record

#: Unit roundoff.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
#: Largest relative error of a number on a wire, by the name of its dtype. Numbers of a
#: block share a scale in the dtypes of 8 and 4 bits.
OF_WIRE = {
    "fp32": 0.0,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 2.0**-7,
    "e4m3": 2.0**-3,
    "e5m2": 2.0**-2,
    "int4": 2.0**-2,
}
#: How much more than a change of the initial weights by a unit in the last place a
#: run may differ, where its bound is exceeded.
_CONDITION = 64
#: Least magnitude of values: smaller ones are differences of larger numbers.
_LEAST = 1e-3
#: Kinds of means that layers report.
_REPORTED = ("step", "evaluate")
#: How much layers may enlarge an error of a number on a wire.
_AMPLIFIED = 32


class Difference(NamedTuple):
    """A value that is not what it should be.

    Attributes:
        what: Name of the value.
        by: Largest difference.
        bound: Largest difference that is allowed.
    """

    what: str
    by: float
    bound: float

    def __str__(self) -> str:
        return f"{self.what} differs by {self.by:.3g}, not by {self.bound:.3g} at most"


def differences(
    case: Case, found: Record, live: Callable[[float], Record]
) -> list[Difference]:
    """Returns what differs by more than rounding errors.

    Where a bound is exceeded, the serial script runs again with initial weights that
    are changed in their last places. What such a change moves as far is
    ill-conditioned.

    Args:
        case: The case.
        found: Record of the ranks.
        live: Returns what the serial script gives, with initial weights that are
            changed by a relative size.
    """
    expected = live(0.0)
    over = list(_over(case, found, expected, {}))
    if not over:
        return []
    moved: dict[str, float] = {}
    u = _unit(case)
    for factor in (4 * u, -4 * u):
        other = live(factor)
        for what, one, another in _pairs(other, expected):
            by = _distance(one, another)
            moved[what] = max(moved.get(what, 0.0), by)
    return list(_over(case, found, expected, moved))


def is_bit_for_bit(found: Record, expected: Record) -> bool:
    """Returns whether all values have the same bits."""
    return all(
        one is not None and np.array_equal(one, other)
        for _, one, other in _pairs(found, expected)
    )


def bound(case: Case) -> float:
    """Returns the largest relative error of a case's values."""
    n_layers = models.n_layers(case.model)
    n_steps = len(case.life.sizes)
    return 2 * n_layers * n_steps * models.largest_sum(case) ** 0.5 * _unit(case)


def roundings(case: Case) -> tuple[list[float], float]:
    """Returns relative errors by the lossy dtypes of a case.

    A value has the errors of its own minibatch, and those of the updates before::

        minibatch 0         update    minibatch 1         update
        messages            exchange  messages            exchange
        step  gradients               step  gradients               state

    Returns:
        The largest error of the values of each entry, and that of the state.
    """
    found, before, way = [], 0.0, case.way
    events = list(case.life.events)
    for number in range(len(case.life.sizes) + 1):
        while events and events[0].before == number:
            event = events.pop(0)
            way = event.way or way
            if event.name in ("evaluate", "predict"):
                found.append(before + _forward(way))
        if number < len(case.life.sizes):
            within = max(_forward(way), _backward(way))
            found += [before + _forward(way), before + within]
            before += within
    return found, before


def _forward(way: Way) -> float:
    """Returns the largest error of a number in a forward."""
    given = way.get("message_dtype")
    names = given if isinstance(given, tuple) else (given,)
    # Each edge adds an error. The first four are in the factor of all errors.
    n_edges = max(4, len(way.cuts) - 2)
    sent = max((n_edges / 4 * OF_WIRE[name] for name in names if name), default=0.0)
    return max(sent, OF_WIRE["bf16"] if way.products else 0.0)


def _backward(way: Way) -> float:
    """Returns the largest error of a number in a backward or an exchange."""
    held = OF_WIRE["bf16"] if way.get("hold_dtype") == "bfloat16" else 0.0
    if way.n_replicas == 1:
        return held
    # Gradients of replicas partly cancel out: each may be larger than their mean.
    sent = OF_WIRE[str(dict(way.exchange)["exchange_dtype"])]
    return max(held, way.n_replicas * sent)


def _unit(case: Case) -> float:
    # Gradients travel between replicas in float32 at most.
    is_exchanged = any(way.n_replicas > 1 for way in case.ways)
    dtype = case.model.dtype
    return ROUNDOFF["float32" if is_exchanged and dtype == "float64" else dtype]


def _over(
    case: Case, found: Record, expected: Record, moved: dict[str, float]
) -> list[Difference]:
    of_entries, of_state = roundings(case)
    magnitudes = {"gradients": expected.rounded}
    magnitudes.update(dict.fromkeys(_REPORTED, expected.reported))
    is_exact = _unit(case) == ROUNDOFF["float64"] and not of_state
    pairs = list(_pairs(found, expected, is_exact))
    for what, _, other in pairs:
        if other is not None:
            kind = _kind(what)
            largest = float(np.max(np.abs(other), initial=0.0))
            magnitudes[kind] = max(magnitudes.get(kind, 0.0), largest)
    clipped = expected.rounded / expected.hooked if expected.hooked else 1.0
    for kind in magnitudes:
        if _is_of_optimizer(kind):
            magnitudes[kind] *= max(1.0, clipped)
    floor = _LEAST * models.largest_inverse_deviation(case)
    for what, one, other in pairs:
        by = _distance(one, other)
        _, is_of_entry, number = what.rpartition(" of call ")
        if (int(number) if is_of_entry else len(of_entries)) >= expected.diverges_at:
            continue
        lossy = of_entries[int(number)] if is_of_entry else of_state
        relative = bound(case) + _AMPLIFIED * lossy
        least = relative * max(magnitudes.get(_kind(what), 0.0), floor)
        allowed = max(least, _CONDITION * moved.get(what, 0.0))
        if not by <= allowed:
            yield Difference(what, by, allowed)


def _kind(what: str) -> str:
    """Returns the part of a name that is the same for values of one magnitude.

    It has no number of a call: a mean may cancel out in one minibatch, and where a
    sample is classified surely, loss and gradients are differences of larger numbers.
    """
    name, _, _ = what.partition(" of call ")
    return " ".join(word for word in name.split() if not word.startswith("/"))


def _is_of_optimizer(kind: str) -> bool:
    """Returns whether values are states of parameters that an optimizer keeps."""
    name, *rest = kind.split()
    return rest == ["of"] and name not in ("avg_mean", "avg_var")


def _distance(one: Any, other: Any) -> float:
    if one is None or other is None:
        return float("inf")
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.shape != other.shape:
        return float("inf")
    distance = np.abs(one - other)
    # NaN equals nothing, so it is a difference.
    return float("inf") if np.isnan(distance).any() else float(distance.max(initial=0))


def _pairs(
    found: Record, expected: Record, is_exact: bool = False
) -> Sequence[tuple[str, Any, Any]]:
    pairs = []
    names = [[entry.name for entry in each.entries] for each in (found, expected)]
    if names[0] != names[1]:
        return [(f"calls {names[0]} for {names[1]}", None, None)]
    for number, (one, other) in enumerate(zip(found.entries, expected.entries)):
        pairs += _of_entries(number, one, other, is_exact)
    for key in sorted({*found.state, *expected.state}):
        pairs.append((key, found.state.get(key), expected.state.get(key)))
    return pairs


def _of_entries(
    number: int, one: Entry, other: Entry, is_exact: bool
) -> list[tuple[str, Any, Any]]:
    keys = sorted({*one.values, *other.values})
    if not is_exact:
        # A rounding error may change which output is the largest.
        keys = [key for key in keys if key != "accuracy"]
    if one.name == "gradients":
        # Values that a run cannot show are left out.
        keys = [key for key in keys if key in one.values]
    where = f"of call {number}"
    return [
        (f"{one.name} {key} {where}", one.values.get(key), other.values.get(key))
        for key in keys
    ]
