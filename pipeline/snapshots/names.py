"""Names of snapshots and of their files, and how they are found on disk.

A directory that cannot be read is an error; it does not count as empty.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.snapshots.errors import naming

#: Ending of the name of a snapshot that is being written, or removed.
PARTIAL = ".partial"
#: Ending of the name of a snapshot that another one is about to replace.
REPLACED = ".replaced"
# Number of random digits between the name and these endings.
TOKEN_DIGITS = 36
_ASIDE = re.compile(rf"(.*?)(?:\.([0-9a-f]{{{TOKEN_DIGITS}}}))?\.(?:partial|replaced)")
#: Files of a snapshot that belong to no stage.
MANIFEST = "manifest.json"
COMMON = "common.npz"
LOSS = "loss.npz"
_FILES = re.compile(
    r"manifest\.json|common\.npz|(replica-\d+-)?(loss\.npz|stage-\d+\.npz)"
)


def name_beside(name: str, token: str, ending: str) -> str:
    """Returns the name of a directory that is written beside a snapshot."""
    return f"{name}.{token}{ending}"


def parts(name: str) -> tuple[str, str | None]:
    """Returns the name of a snapshot, and the token of a directory beside it, if any.

    Example:
        >>> beside = name_beside('iter_1', '0' * TOKEN_DIGITS, PARTIAL)
        >>> parts(beside) == ('iter_1', '0' * 36)
        True
        >>> parts('iter_1.partial')
        ('iter_1', None)
    """
    found = _ASIDE.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


def series(name: str) -> str:
    """Returns the common form of the names of a run's snapshots.

    Example:
        >>> series('iter_12') == series('iter_7.partial')
        True
    """
    return re.sub(r"\d+", "0", parts(name)[0])


def replaced_patterns(pattern: str) -> tuple[str, str]:
    """Returns patterns for snapshots that are being replaced."""
    token = "[0-9a-f]" * TOKEN_DIGITS
    return pattern + REPLACED, name_beside(pattern, token, REPLACED)


def check_name(name: str | os.PathLike) -> None:
    """Refuses a path whose last part cannot be the name of a snapshot.

    Raises:
        ValueError: If a snapshot of this name would not be found again.
    """
    last = os.path.basename(os.path.normpath(name)) if os.fspath(name) else ""
    if last in ("", ".", "..") or os.path.basename(os.fspath(name)) in (".", ".."):
        raise ValueError(
            f"{os.fspath(name)!r} is no name for a snapshot: it is a place for some"
        )
    for ending in (PARTIAL, REPLACED):
        if last.endswith(ending):
            raise ValueError(
                f"{os.fspath(name)!r} is no name for a snapshot: what ends in {ending}"
                f" is a snapshot that another takes the place of, or a part of one"
            )


def stage_file(number: int) -> str:
    """Returns the name of a stage's file."""
    return f"stage-{number}.npz"


def replica_file(replica: int, name: str) -> str:
    """Returns the name of the file with a later replica's own values.

    Args:
        replica (int): Number of the replica, from 1.
        name (str): Name of the file that the first replica has written.
    """
    return f"replica-{replica}-{name}"


def has_files_of_snapshot(names: Iterable[str]) -> bool:
    """Returns whether a directory was a snapshot, even if it is damaged now.

    This distinguishes a snapshot with a damaged manifest from other directories.

    Args:
        names: Names of all entries in the directory.
    """
    # Network file systems keep open files under such names after their removal.
    names = {name for name in names if not name.startswith(".nfs")}
    ours = {name for name in names if _FILES.fullmatch(name)}
    return {COMMON, stage_file(0)} <= ours or (ours == names and ours > {MANIFEST})


def names_in(directory: Path) -> list[str]:
    """Returns the sorted names in a directory; none if it does not exist.

    Raises:
        SnapshotError: If it cannot be read, with the cause.
    """
    with naming(directory, "look for snapshots in"):
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []


def is_file(path: Path) -> bool:
    """Returns whether a file exists; ``Path.is_file`` would hide errors.

    Raises:
        SnapshotError: If this cannot be determined, with the cause.
    """
    return stat.S_ISREG(mode_of(path))


def is_folder(path: Path) -> bool:
    """Returns whether a directory exists; see :func:`is_file`."""
    return stat.S_ISDIR(mode_of(path))


def mode_of(path: Path) -> int:
    """Returns the mode of a path, 0 if nothing is there; see :func:`is_file`."""
    with naming(path, "look at"):
        try:
            return os.stat(path).st_mode
        except OSError as error:
            # A link that leads nowhere, or to itself, counts as nothing.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise


def matching(directory: Path, pattern: str) -> Iterator[Path]:
    """Yields the paths in a directory that match a pattern.

    ``Path.glob`` would skip directories that cannot be read.

    Args:
        directory: Directory to search.
        pattern: Pattern with ``*``, ``?`` and ``[]``, as in names of files; it may have
            ``/``, and ``**`` for any number of directories.

    Raises:
        SnapshotError: If a directory cannot be read, with the cause.
    """
    if os.path.isabs(pattern):
        raise ValueError(f"{pattern!r} must be a pattern of names in {directory}")
    first, _, others = pattern.partition("/")
    others = others.lstrip("/")
    if first == "**":
        below = [each for each in _matching_here(directory, "*") if is_folder(each)]
        if others:
            yield from matching(directory, others)
        else:
            yield from below
        for each in below:
            if not each.is_symlink():
                yield from matching(each, pattern)
    elif not others:
        yield from _matching_here(directory, first)
    else:
        for each in _matching_here(directory, first):
            if is_folder(each):
                yield from matching(each, others)


def _matching_here(directory: Path, pattern: str) -> list[Path]:
    if pattern in (".", ".."):
        return [directory / pattern]
    return [
        directory / name
        for name in names_in(directory)
        if fnmatch.fnmatchcase(name, pattern)
    ]
