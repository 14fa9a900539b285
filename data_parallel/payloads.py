"""The places in which messages are written and read, on the device of the arrays.

::

    on a GPU      arrays --encode--> payload        payload --decode--> arrays
                                        |              ^
    on the host                      message        message

Messages of MPI are in memory of the host. For arrays on a GPU the payload, which is the
message without its flags, is written there and copied in one piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class HostPayloads:
    """Payloads of NumPy's arrays, which are written and read in the messages."""

    def to_write(self, payload: np.ndarray) -> Any:
        """Returns an array in which to write the payload of a message."""
        return payload

    def written(self, buffer: Any, payload: np.ndarray) -> None:
        """Completes the payload after it was written."""

    def to_read(self, payload: np.ndarray) -> Any:
        """Returns an array from which to read the payload of a message."""
        return payload

    def wait(self) -> None:
        """Waits until messages have been read."""


class DevicePayloads(HostPayloads):
    """Payloads of CuPy's arrays, which are copied in the order of CuPy's stream.

    Args:
        xp: The module of the arrays.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def to_write(self, payload: np.ndarray) -> Any:
        """Returns an array in which to write the payload of a message."""
        return self._xp.empty(payload.size, np.uint8)

    def written(self, buffer: Any, payload: np.ndarray) -> None:
        """Waits for the kernels, and copies the payload into the message."""
        buffer.get(out=payload)

    def to_read(self, payload: np.ndarray) -> Any:
        """Returns an array from which to read the payload of a message."""
        buffer = self._xp.empty(payload.size, np.uint8)
        buffer.set(payload)
        return buffer

    def wait(self) -> None:
        """Waits until messages have been read, so that MPI may write to them."""
        self._xp.cuda.get_current_stream().synchronize()


def payloads_of(device: Any) -> HostPayloads:
    """Returns payloads for the arrays of a device."""
    return HostPayloads() if device.xp is np else DevicePayloads(device.xp)
