"""The memory of messages while MPI reads and writes them.

===================  =====================  ===========================================
arrays of the model  MPI library            buffers
===================  =====================  ===========================================
NumPy                any                    the arrays themselves
CuPy                 takes device memory    the arrays themselves, on the device
CuPy                 any other              page-locked arrays of the host, and a copy
===================  =====================  ===========================================

The second row has not been run yet; the third is tested on one GPU. NCCL is not used:
it needs a device for each rank, and no machine with several devices has been available.
Its use would need care: NCCL's kernels wait on the device for the other rank, without a
deadline. They may block kernels that this rank has to run first.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mpi4py import MPI


def create_buffers(xp: Any) -> HostBuffers:
    """Returns buffers that suit the arrays and the MPI library.

    Args:
        xp: The module of the model's arrays, ``numpy`` or ``cupy``.
    """
    if xp is np:
        return HostBuffers()
    return DeviceBuffers(xp) if mpi_takes_device_memory() else StagedBuffers(xp)


def page_locked(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns an array of the host that a GPU reads and writes without another copy."""
    # cupyx is installed where a GPU is used.
    import cupyx

    return cupyx.empty_pinned(shape, dtype)


def mpi_takes_device_memory() -> bool:
    """Returns whether MPI messages may lie on a GPU.

    Open MPI and MPICH have the same function, which is not of the MPI standard and so
    not in mpi4py.
    """
    library = ctypes.CDLL(MPI.__file__)
    query = getattr(library, "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1


class HostBuffers:
    """NumPy arrays, which MPI reads and writes in place."""

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a buffer to receive into."""
        return np.empty(shape, dtype)

    def reuse(self) -> None:
        """Prepares for MPI to write into a buffer that was used before."""

    def outgoing(self, array: Any) -> Any:
        """Returns a contiguous buffer with the array, ready to be read."""
        return np.ascontiguousarray(array)

    def incoming(self, buffer: Any) -> Any:
        """Returns the array that was received."""
        return buffer


class DeviceBuffers(HostBuffers):
    """CuPy arrays, which MPI reads and writes in place.

    Kernels run asynchronously, and MPI does not wait for them. It must neither read
    arrays that are not computed yet, nor write arrays that kernels still read.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def _wait_for_kernels(self) -> None:
        self._xp.cuda.get_current_stream().synchronize()

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a buffer to receive into."""
        buffer = self._xp.empty(shape, dtype)
        # The memory pool may return memory that a kernel still reads.
        self._wait_for_kernels()
        return buffer

    def reuse(self) -> None:
        """Waits for kernels, before MPI writes into a buffer that was used before."""
        self._wait_for_kernels()

    def outgoing(self, array: Any) -> Any:
        """Returns a contiguous buffer with the array, ready to be read."""
        buffer = self._xp.ascontiguousarray(array)
        self._wait_for_kernels()
        return buffer


class StagedBuffers(DeviceBuffers):
    """Page-locked arrays of the host, which are copied from and to CuPy arrays."""

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a buffer to receive into."""
        return page_locked(shape, dtype)

    def reuse(self) -> None:
        """Does nothing: :meth:`incoming` has waited for the copy."""

    def outgoing(self, array: Any) -> Any:
        """Returns a contiguous buffer with the array, ready to be read."""
        array = self._xp.ascontiguousarray(array)
        buffer = self.allocate(array.shape, array.dtype)
        array.get(out=buffer)
        return buffer

    def incoming(self, buffer: Any) -> Any:
        """Returns the array that was received."""
        array = self._xp.asarray(buffer)
        self._wait_for_kernels()
        return array
