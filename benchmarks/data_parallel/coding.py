"""How fast gradients are encoded and decoded, scales of blocks included."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.common.results import alternate, cpu_seconds
from divisible.communication.wire import WIRE

BLOCK = 256
#: Elements that are coded in one measurement, in as many messages as it takes.
ELEMENTS = 2**24


def speeds(n: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Returns how many elements a second are encoded, and decoded, on one core.

    Args:
        n: Elements of a message.
        rounds: In which all wire dtypes take turns.

    Returns:
        By wire dtype the medians.
    """
    values = np.random.default_rng(0).standard_normal(n, np.float32)
    out = np.empty_like(values)
    repeats = max(1, ELEMENTS // n)
    variants = {}
    for name, wire in WIRE.items():
        message = wire.encode(values, BLOCK)

        def encode(wire: object = wire, message: np.ndarray = message) -> None:
            for _ in range(repeats):
                wire.encode(values, BLOCK, message)

        def decode(wire: object = wire, message: np.ndarray = message) -> None:
            for _ in range(repeats):
                wire.decode(message, n, BLOCK, out)

        variants |= {(name, "encode"): encode, (name, "decode"): decode}
    for variant in variants.values():
        variant()
    seconds = alternate(variants, rounds, cpu_seconds)
    speed = {
        key: repeats * n / statistics.median(times) for key, times in seconds.items()
    }
    return {name: (speed[name, "encode"], speed[name, "decode"]) for name in WIRE}
