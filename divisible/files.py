"""Files that are there completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[str]:
    """Opens a block that writes a file, which appears only when it has ended well.

    Args:
        path: The file; what is there is replaced.

    Yields:
        str: The path to write to instead, in the same directory.
    """
    # Processes in containers, and on several hosts, may have the same number.
    aside = f"{os.fspath(path)}.tmp{secrets.token_hex(8)}"
    try:
        yield aside
        os.replace(aside, path)
    except BaseException:
        # The first failure is the one to be raised.
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


def write_picture(path: str | os.PathLike, figure: Any, **settings: Any) -> None:
    """Writes a picture of matplotlib; the file appears only when it is complete.

    Args:
        path: The file, whose ending names the format; without one it is ``.png``.
        figure (matplotlib.figure.Figure): The picture.
        **settings: Arguments for ``savefig``.
    """
    path = Path(path)
    if not path.suffix:
        path = path.with_name(f"{path.name}.png")
    with written_aside(path) as aside:
        figure.savefig(aside, format=path.suffix[1:], **settings)


def free_bytes(path: str | os.PathLike) -> str:
    """Returns the room on the disk of a file in words, for an error.

    Args:
        path: The file, or a folder; it need not be there.

    Returns:
        str: Such as ``'; 1,024 bytes are free there'``, empty if the system does not
        tell.
    """
    place = Path(os.path.abspath(path))
    for folder in (place, *place.parents):
        with contextlib.suppress(OSError):
            return f"; {shutil.disk_usage(folder).free:,} bytes are free there"
    return ""
