"""Shows in the documentation what the catalogue knows of the dtypes on the wire.

    .. wire-bounds::     what a rounding costs at most
    .. wire-errors::     what an exchange sends and costs, by simulation

A new entry of `divisible.communication.wire` appears in both.
"""

from __future__ import annotations

import math

import numpy as np
from catalogue_tables import directive, table

from data_parallel import simulate_exchange
from divisible.communication import wire
from divisible.communication.wire import WIRE

# Replicas and elements of the compared exchanges.
_N_REPLICAS, _N_ELEMENTS = 4, 2**18


def bounds() -> list[str]:
    """Tells what one rounding costs at most, beside float32's own."""
    rows = [
        (
            f"``'{name}'``",
            str(entry.bits),
            "yes" if entry.is_scaled else "no",
            _number(entry.u),
            _number(entry.a),
            _number(entry.least),
        )
        for name, entry in WIRE.items()
    ]
    head = ("wire dtype", "bits", "a scale for each block", "u", "a", "absolute")
    return table("auto", [head, *rows])


def errors() -> list[str]:
    """Simulates an exchange of normally distributed gradients."""
    random = np.random.RandomState(0)
    shape = _N_REPLICAS, _N_ELEMENTS
    gradients = list((1e-3 * random.standard_normal(shape)).astype(np.float32))
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    rows = []
    for name in WIRE:
        found = simulate_exchange(gradients, exchange_dtype=name)
        error = np.linalg.norm(found.mean - exact) / np.linalg.norm(exact)
        sent = found.sent_bytes / _N_ELEMENTS
        rows.append((f"``'{name}'``", f"{sent:.2f}", f"{error:.1g}"))
    head = ("wire dtype", "bytes sent for each element", "error")
    return table("auto", [head, *rows])


def _number(value: float) -> str:
    """Returns a power of two as one."""
    if not value:
        return ""
    exponent = math.log2(value)
    if exponent == int(exponent):
        return f"2\\ :sup:`{int(exponent)}`"
    return f"1/{round(1 / value)}"


def setup(app) -> dict[str, bool]:
    """Registers the directives with Sphinx."""
    for make in (bounds, errors):
        app.add_directive(f"wire-{make.__name__}", directive(make, wire))
    return {"parallel_read_safe": True}
