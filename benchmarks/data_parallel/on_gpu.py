"""Gradients on a GPU: how fast they are coded there, and what their exchange costs.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.data_parallel.on_gpu

Two ranks share a GPU and the memory of one host, so that messages cost next to nothing:
what is left of an exchange are coding, copies between GPU and host, and sums. Coding is
timed by the clock until the GPU is idle, with blocks of 256. The same exchange of
NumPy's arrays takes turns with it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.common.two_ranks import two_ranks
from data_parallel import Exchange
from divisible.communication.wire import WIRE

BLOCK = 256
#: Elements of a coded array, and of an exchanged one.
CODED, EXCHANGED = 2**25, 2**23
TIMEOUT = 100.0


def speeds(xp: Any, rounds: int) -> dict[str, tuple[float, float]]:
    """Returns how many elements a second are encoded, and decoded, by wire dtype."""
    values = xp.asarray(np.random.default_rng(0).standard_normal(CODED, np.float32))
    out = xp.empty_like(values)
    found = {}
    for name, wire in WIRE.items():
        message = wire.encode(values, BLOCK)
        calls = (
            lambda w=wire, m=message: w.encode(values, BLOCK, m),
            lambda w=wire, m=message: w.decode(m, CODED, BLOCK, out),
        )
        found[name] = tuple(
            CODED / statistics.median(seconds(xp, call) for _ in range(rounds + 1))
            for call in calls
        )
    return found


def seconds(xp: Any, call: Callable[[], Any]) -> float:
    """Returns the seconds of a call, until the GPU is idle."""
    xp.cuda.Device().synchronize()
    start = time.perf_counter()
    call()
    xp.cuda.Device().synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Measures both, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    import cupy

    comm = two_ranks(parser)
    result = Result("data_parallel_on_gpu", arguments.output, silent=comm.rank > 0)
    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    if comm.rank == 0:
        result.write(
            command("mpiexec -n 2"),
            machine("numpy", "mpi4py", "mpich"),
            f"{card}, CuPy {cupy.__version__}; {arguments.rounds} rounds",
            "",
            f"coding of {CODED / 2**20:.0f} Mi elements on it, 10^9 elements a second",
            f"{'':6} {'encode':>8} {'decode':>8}",
        )
        for name, speed in speeds(cupy, arguments.rounds).items():
            result.write(f"{name:6} {speed[0] / 1e9:8.1f} {speed[1] / 1e9:8.1f}")
    comm.barrier()
    variants, exchanges = {}, []
    for exchange_dtype in ("fp32", "fp16", "int8"):
        exchange = Exchange(
            comm,
            exchange_dtype=exchange_dtype,
            local_size=1,
            minimum=0,
            timeout=TIMEOUT,
        )
        exchanges.append(exchange)
        for where, xp in (("on the GPU", cupy), ("on the host", np)):
            array = xp.ones(EXCHANGED, np.float32)

            def mean(exchange: Exchange = exchange, array: Any = array) -> None:
                comm.barrier()
                exchange.mean([array])

            variants[exchange_dtype, where] = mean
    for variant in variants.values():
        variant()
    times = alternate(variants, arguments.rounds, lambda call: seconds(cupy, call))
    result.write(
        "",
        f"the mean of {EXCHANGED / 2**20:.0f} Mi elements over two ranks of one host,"
        " medians in ms; ratios to float32 on the GPU, median (min..max)",
    )
    base = times["fp32", "on the GPU"]
    for (exchange_dtype, where), found in times.items():
        result.write(
            f"{exchange_dtype:6} {where:12} {1e3 * statistics.median(found):7.1f}"
            f"  {ratios(found, base)}"
        )
    result.save()
    for exchange in exchanges:
        exchange.close()


if __name__ == "__main__":
    main()
