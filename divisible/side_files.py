"""Files that a run can do without: logs and pictures.

::

    a check is logged     {"iteration": 40, ...}
    the disk is full      {"iteration": 60, ...      torn; one warning, the run goes on
    there is room again   {"iteration": 80, ...}     on a line of its own
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from divisible.files import why_not
from divisible.user_warnings import warn_user

_REMEDY = "Free space there, or give the trainer another folder by out=."


class SideFiles:
    """Files of one kind, whose failure must not end a run.

    Args:
        what (str): Name of the files, such as ``'the log of Rebalance'``.
        remedy (str): The cure for a failure, as a sentence.

    Attributes:
        n_failed (int): Number of failed writes.

    Example:
        >>> import warnings
        >>> files = SideFiles("the log")
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     with files.writing("log"):
        ...         raise OSError("the disk is full")
        >>> files.n_failed
        1
    """

    def __init__(self, what: str, remedy: str = _REMEDY) -> None:
        self._what, self._remedy = what, remedy
        self.n_failed = 0

    @contextlib.contextmanager
    def writing(self, path: str | os.PathLike) -> Iterator[None]:
        """Opens a block that writes such a file.

        If the block raises an :class:`OSError`, it ends there. The first failure causes
        a warning with the reason; later failures are only counted.

        Args:
            path: The file, or its folder.
        """
        try:
            yield
        except BrokenPipeError:
            # The reader of the output has gone, which ends any program.
            raise
        except OSError as error:
            self.n_failed += 1
            if self.n_failed == 1:
                warn_user(
                    f"{self._what} cannot be written to {os.fspath(path)}:"
                    f" {why_not(error, path)}. The run goes on,"
                    f" and later failures are not reported. {self._remedy}",
                )


def append_line(path: str | os.PathLike, line: str) -> None:
    """Adds a line to a log, and makes its folder.

    The line before may be cut off, by a full disk or the end of a process. It then ends
    before the new line begins.

    Args:
        path: The log.
        line: The text, without its end.

    Raises:
        OSError: If it cannot be written. A part of the line may have been written.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "ab+") as file:
        is_torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_torn = file.read(1) != b"\n"
        file.write(b"\n" * is_torn + line.encode() + b"\n")
