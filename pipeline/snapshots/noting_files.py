"""Files that note why they could not be read."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from pipeline.snapshots.errors import naming


class NotingFile(io.FileIO):
    """A file to read, which keeps the first error of the file system.

    :mod:`zipfile` takes such an error for a file that is no archive.

    Attributes:
        error (OSError or None): The error.
    """

    error: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        """Reads into a buffer, and returns how many bytes."""
        with self._noting():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Reads until the end of the file."""
        with self._noting():
            return super().readall()

    def close(self) -> None:
        """Closes the file.

        Raises:
            SnapshotError: With the file and the cause.
        """
        with naming(self.name, "close"):
            super().close()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            raise
