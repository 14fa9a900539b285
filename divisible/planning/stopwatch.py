"""Measures how long code runs and how much memory it allocates, on a CPU or a GPU."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any, Callable

import chainer
import numpy as np


def stopwatch(device: chainer.backend.Device) -> Callable[[Callable[[], Any]], float]:
    """Returns a function that runs another one and returns the seconds that it took.

    Args:
        device: Device that computes. On a GPU the time is that between two events in
            its stream, and the stream is waited for.
    """
    return _cpu_seconds if device.xp is np else _gpu_seconds


def memory_tracer(device: chainer.backend.Device) -> CPUTracer | GPUTracer:
    """Returns a context in which allocations are counted.

    ``now()`` returns the bytes allocated and forgets the peak; ``peak()`` returns the
    most bytes since.

    Args:
        device: Device that has the memory.
    """
    return CPUTracer() if device.xp is np else GPUTracer()


def _cpu_seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _gpu_seconds(run: Callable[[], Any]) -> float:
    cuda = chainer.backends.cuda.cupy.cuda
    start, end = cuda.Event(), cuda.Event()
    start.record()
    run()
    end.record()
    end.synchronize()
    return cuda.get_elapsed_time(start, end) / 1000


class CPUTracer:
    """Bytes that Python and NumPy have allocated."""

    def __enter__(self) -> CPUTracer:
        self._started = not tracemalloc.is_tracing()
        if self._started:
            tracemalloc.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._started:
            tracemalloc.stop()

    def now(self) -> int:
        """Returns the bytes allocated, and forgets the peak."""
        tracemalloc.reset_peak()
        return tracemalloc.get_traced_memory()[0]

    def peak(self) -> int:
        """Returns the most bytes allocated since :meth:`now`."""
        return tracemalloc.get_traced_memory()[1]


class GPUTracer:
    """Bytes that CuPy's memory pool has handed out."""

    def __enter__(self) -> GPUTracer:
        cuda = chainer.backends.cuda.cupy.cuda

        class Hook(cuda.MemoryHook):
            name = "divisible.profile"

            def malloc_postprocess(_, **arguments: Any) -> None:
                self._bytes += arguments["mem_size"]
                self._peak = max(self._peak, self._bytes)

            def free_postprocess(_, **arguments: Any) -> None:
                self._bytes -= arguments["mem_size"]

        self._bytes = self._peak = 0
        self._hook = Hook()
        self._hook.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.__exit__(*error)

    def now(self) -> int:
        """Returns the bytes allocated, and forgets the peak."""
        self._peak = self._bytes
        return self._bytes

    def peak(self) -> int:
        """Returns the most bytes allocated since :meth:`now`."""
        return self._peak
