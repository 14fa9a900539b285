"""Files that are there completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[str]:
    """Lets a block write a file that appears only when the block has ended well.

    Args:
        path: Of the file; what is there is replaced.

    Yields:
        Where to write instead, in the same directory.
    """
    # Processes in containers, and on several hosts, may have the same number.
    aside = f"{os.fspath(path)}.tmp{secrets.token_hex(8)}"
    try:
        yield aside
        os.replace(aside, path)
    except BaseException:
        # What failed is what is told, and not that this failed as well.
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def flush(file: IO) -> None:
    """Waits until what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_directory(path: str | os.PathLike) -> None:
    """Waits until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems do not know this for directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes JSON; the file appears only when it is complete.

    Args:
        path: Where to write.
        content: Dictionaries, lists, texts and finite numbers.
    """
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")
