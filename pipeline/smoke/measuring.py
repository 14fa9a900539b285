"""Measures what a rank has: cores, memory, disk, versions."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable
from typing import Any

import chainer
import mpi4py
import numba
import numpy as np
import scipy
from mpi4py import MPI
from threadpoolctl import threadpool_info

from chainer_kernels import providers
from divisible.free_memory import claims
from divisible.streaming import StoreError, measure_disk
from pipeline.start.versions import version

# Side of square matrices whose product takes a millisecond or so.
_SIDE = 384
# Seconds of products, half of them by the kernels; of copies.
_SECONDS_OF_PRODUCTS, _SECONDS_OF_COPIES = 2.0, 0.5
# Bytes of a copied array, larger than caches; of a file.
_COPIED, _FILE = 64 * 2**20, 16 * 2**20
_VARIABLES = ("OMP_NUM_THREADS", "CHAINER_KERNELS", "CHAINER_KERNELS_PROVIDER")
_SHARED = "/dev/shm"


def host_name() -> str:
    """Returns the name of this rank's host."""
    return socket.gethostname()


def versions() -> dict[str, str]:
    """Returns the versions on which ranks must agree, by name."""
    return {
        "divisible": version().removeprefix("divisible "),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "Numba": numba.__version__,
        "Chainer": chainer.__version__,
        "mpi4py": mpi4py.__version__,
        "MPI": " ".join(MPI.Get_library_version().partition("\n")[0].split()),
    }


def variables() -> dict[str, str]:
    """Returns environment variables that ranks usually have alike; empty if not set."""
    return {name: os.environ.get(name, "") for name in _VARIABLES}


def compute() -> dict[str, Any]:
    """Measures products, while the other ranks do so; facts by name.

    Chainer's products and those of the kernels take turns, so that a disturbance meets
    both.
    """
    a = np.ones((_SIDE, _SIDE), np.float32)
    product = providers.active().product
    calls: dict[str, Callable] = {
        "chainer_seconds": lambda: a @ a,
        "kernel_seconds": lambda: product(a, a),
    }
    for call in calls.values():
        call()
    seconds, n = dict.fromkeys(calls, 0.0), 0
    begun, cpu = time.perf_counter(), time.process_time()
    while n == 0 or time.perf_counter() - begun < _SECONDS_OF_PRODUCTS:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name] += time.perf_counter() - start
        n += 1
    wall = time.perf_counter() - begun
    cpu, cores = time.process_time() - cpu, _cores()
    # BLAS starts no more threads than there are cores, unlike the kernels' library.
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    return {
        **{name: total / n for name, total in seconds.items()},
        "cpu_share": min(1.0, cpu / wall / min(threads, len(cores) or threads)),
        "threads": threads,
        "cores": cores,
    }


def copy() -> dict[str, Any]:
    """Measures copies in memory, while the other ranks do so; facts by name."""
    left = min((claim.left for claim in claims(0).values()), default=_COPIED * 8)
    n_bytes = max(2**20, min(_COPIED, left // 8))
    source = np.ones(n_bytes, np.uint8)
    target = np.zeros_like(source)
    n, begun = 0, time.perf_counter()
    while n == 0 or time.perf_counter() - begun < _SECONDS_OF_COPIES:
        np.copyto(target, source)
        n += 1
    seconds = time.perf_counter() - begun
    return {"copied_bytes": 2 * n_bytes * n / seconds}


def room() -> dict[str, Any]:
    """Returns the memory that is free for this rank; facts by name."""
    shared = None
    with contextlib.suppress(OSError):
        found = os.statvfs(_SHARED)
        shared = found.f_bavail * found.f_frsize
    memory = {name: (claim.where, claim.left) for name, claim in claims(0).items()}
    return {
        "memory": memory,
        "shared_memory": shared,
        "thread_level": MPI.Query_thread(),
    }


def disk() -> dict[str, Any]:
    """Measures the disk of temporary files; facts by name."""
    try:
        found = measure_disk(n_bytes=_FILE)
    except (StoreError, OSError) as error:
        return {"disk_error": str(error)}
    return {"disk_read": found.read, "disk_write": found.write}


def _cores() -> tuple[int, ...]:
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))
