"""Memory of a host that several of its processes map.

The memory has no name in any directory: it is a file without a link, which another
process opens by the number of its first owner and of the open file. So nothing is left
behind, however a process ends, and the memory stays as long as somebody maps it::

    owner     SharedMemory.make(bytes) --> address -- told once --.
    other     SharedMemory.open(address) <------------------------'   the same bytes

MPI's own shared windows are not used. They are made and freed by calls of all ranks,
which block without a limit, and they cannot grow. Between hosts a put is complete
only after ``MPI_Win_flush``, which blocks for ever if the other process is stopped.
With MPICH 5.0 over TCP, a put of 8 MiB fails.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """The address of memory, by which other processes of the host open it.

    Attributes:
        host (str): Name of the host.
        process (int): Number of the process that has made it.
        file (int): Number of the open file in that process.
        name (str): A name that no other memory has.
        n_bytes (int): Bytes of the memory.
    """

    host: str
    process: int
    file: int
    name: str
    n_bytes: int


class SharedMemory:
    """Memory that this process maps.

    Args:
        file (int): Number of the open file of the memory.
        address (Address): The address, for other processes.

    Attributes:
        address (Address): See above.
        content (memoryview): The bytes.
    """

    def __init__(self, file: int, address: Address) -> None:
        self._file, self.address = file, address
        # The map lives as long as an array refers to it.
        self.content = memoryview(mmap.mmap(file, address.n_bytes))

    @classmethod
    def make(cls, n_bytes: int) -> SharedMemory:
        """Returns new memory, filled with zeros.

        Args:
            n_bytes (int): Bytes of the memory, at least 1.

        Raises:
            OSError: If the system has no such memory. Callers check that there is
                enough: else the system ends processes.

        Example:
            >>> mine = SharedMemory.make(100)
            >>> with SharedMemory.open(mine.address) as other:
            ...     other.content[3] = 7
            >>> mine.content[3]
            7
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory without a name")
        name = f"divisible-{secrets.token_hex(8)}"
        file = os.memfd_create(name)
        try:
            # A limit of the file system is an error now, not a signal at a write.
            os.posix_fallocate(file, 0, n_bytes)
            place = socket.gethostname(), os.getpid()
            return cls(file, Address(*place, file, name, n_bytes))
        except BaseException:
            os.close(file)
            raise

    @classmethod
    def open(cls, address: Address) -> SharedMemory:
        """Returns memory that another process has made.

        Raises:
            OSError: If this process cannot open it, such as on another host.
        """
        if address.host != socket.gethostname():
            raise OSError(f"memory of {address.host} is not on this host")
        path = f"/proc/{address.process}/fd/{address.file}"
        # In another container the numbers may belong to something else.
        if not os.readlink(path).startswith(f"/memfd:{address.name} "):
            raise OSError(f"{path} is not the memory {address.name}")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(file, address)
        except BaseException:
            os.close(file)
            raise

    def close(self) -> None:
        """Closes the file: no other process can open the memory from now on.

        Arrays of the memory stay valid.
        """
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
