"""Files that are either complete or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

# Errors of a full disk, a full quota, and the size limit of the process.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[str]:
    """Opens a block that writes a file, which appears only if the block succeeds.

    Args:
        path: The file, which replaces an existing one. A device or a pipe is written to
            directly.

    Yields:
        str: The path to write to instead, in the same directory.

    Raises:
        OSError: If the file cannot be written; has the path of the file.
    """
    path = os.fspath(path)
    # Processes in containers, or on several hosts, may have the same number.
    aside = f"{path}.tmp{secrets.token_hex(8)}"
    if _is_special(path):
        aside = path
    try:
        yield aside
        if aside != path:
            os.replace(aside, path)
    except BaseException as error:
        # The first failure is the one to be raised.
        with contextlib.suppress(OSError):
            if aside != path:
                os.unlink(aside)
        is_of_system = isinstance(error, OSError) and error.errno is not None
        if is_of_system and error.filename in (None, aside):
            raise OSError(error.errno, error.strerror, path) from error
        raise


def _is_special(path: str) -> bool:
    """Returns whether a path is a device or a pipe, which no file must replace."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def flush(file: IO) -> None:
    """Waits until the written content of a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_directory(path: str | os.PathLike) -> None:
    """Waits until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot do this for directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes JSON; the file appears only when it is complete.

    Args:
        path: The file to write.
        content: Dictionaries, lists, texts and finite numbers.
    """
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")


def new_figure(
    size: tuple[float, float], what: str, dpi: float | None = None, instead: str = ""
) -> Any:
    """Returns an empty picture of matplotlib, which is optional.

    Args:
        size: Width and height, in inches.
        what: The beginning of the error, such as ``'drawing a profile'``.
        dpi: Points per inch; matplotlib's own by default.
        instead: Another way to see the content, for the error.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        otherwise = f", or {instead}" if instead else ""
        raise ImportError(
            f"{what} needs matplotlib; install it (pip install matplotlib){otherwise}"
        ) from error
    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    # A canvas is needed to measure texts, but no window is opened.
    FigureCanvasAgg(figure)
    return figure


def write_picture(path: str | os.PathLike, figure: Any, **settings: Any) -> None:
    """Writes a picture of matplotlib; the file appears only when it is complete.

    Args:
        path: The file, whose ending names the format; without one it is ``.png``. A
            device or a pipe without an ending gets a PNG.
        figure (matplotlib.figure.Figure): The picture.
        **settings: Arguments for ``savefig``.
    """
    path = Path(path)
    if not path.suffix and not _is_special(os.fspath(path)):
        path = path.with_name(f"{path.name}.png")
    with written_aside(path) as aside:
        figure.savefig(aside, format=path.suffix[1:] or "png", **settings)


def why_not(error: OSError, path: str | os.PathLike) -> str:
    """Returns the reason why a file cannot be written; for a full disk the free bytes.

    Args:
        error: The error of the file system.
        path: The file, or a folder; it may be missing.

    Returns:
        str: Such as ``'No space left on device; 1,024 bytes are free there'``.
    """
    words = error.strerror or str(error)
    if error.errno not in _FULL:
        return words
    place = Path(os.path.abspath(path))
    for folder in (place, *place.parents):
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            return f"{words}; {free:,} bytes are free there"
    return words
