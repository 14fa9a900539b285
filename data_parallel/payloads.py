"""Where messages are written and read: where the arrays are.

::

    on a GPU      arrays --encode--> payload        payload --decode--> arrays
                                        |              ^
    on the host                      message        message

MPI's messages are memory of the host. Of arrays on a GPU the payload, which is all but
the flags, is made there, and is copied in one piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class HostPayloads:
    """Of NumPy's arrays: they are written and read in the messages themselves."""

    def to_write(self, payload: np.ndarray) -> Any:
        """Returns where to write what a message is to have."""
        return payload

    def written(self, buffer: Any, payload: np.ndarray) -> None:
        """Ends what :meth:`to_write` began."""

    def to_read(self, payload: np.ndarray) -> Any:
        """Returns where to read what a message has."""
        return payload

    def wait(self) -> None:
        """Waits until messages have been read."""


class DevicePayloads(HostPayloads):
    """Of CuPy's arrays: they are copied, in the order of CuPy's current stream.

    Args:
        xp: The module of the arrays.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def to_write(self, payload: np.ndarray) -> Any:
        """Returns where to write what a message is to have."""
        return self._xp.empty(payload.size, np.uint8)

    def written(self, buffer: Any, payload: np.ndarray) -> None:
        """Ends what :meth:`to_write` began: waits for the kernels and the copy."""
        buffer.get(out=payload)

    def to_read(self, payload: np.ndarray) -> Any:
        """Returns where to read what a message has."""
        buffer = self._xp.empty(payload.size, np.uint8)
        buffer.set(payload)
        return buffer

    def wait(self) -> None:
        """Waits until messages have been read: MPI may write to them then."""
        self._xp.cuda.get_current_stream().synchronize()


def payloads_of(device: Any) -> HostPayloads:
    """Returns what serves the arrays of a device of Chainer's."""
    return HostPayloads() if device.xp is np else DevicePayloads(device.xp)
