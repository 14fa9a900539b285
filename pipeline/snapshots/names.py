"""Names of snapshots and of their files, and how they are found on disk.

What cannot be looked at is an error, and not empty.
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

#: Behind the name of a snapshot that is being written, or removed.
PARTIAL = ".partial"
#: Behind the name of one that is there until another has taken its place.
REPLACED = ".replaced"
# Between the name and these, at random.
TOKEN_DIGITS = 36
_ASIDE = re.compile(rf"(.*?)(?:\.([0-9a-f]{{{TOKEN_DIGITS}}}))?\.(?:partial|replaced)")
#: The files of a snapshot that are no stage's.
MANIFEST = "manifest.json"
COMMON = "common.npz"
LOSS = "loss.npz"
_FILES = re.compile(
    r"manifest\.json|common\.npz|(replica-\d+-)?(loss\.npz|stage-\d+\.npz)"
)


def aside(name: str, token: str, ending: str) -> str:
    """Returns the name of what lies beside a snapshot with the given name."""
    return f"{name}.{token}{ending}"


def parts(name: str) -> tuple[str, str | None]:
    """Returns the name of a snapshot, and the token of what lies beside it, if any.

    Example:
        >>> parts(aside('iter_1', '0' * TOKEN_DIGITS, PARTIAL)) == ('iter_1', '0' * 36)
        True
        >>> parts('iter_1.partial')
        ('iter_1', None)
    """
    found = _ASIDE.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


def series(name: str) -> str:
    """Returns what the names of a run's snapshots have in common.

    Example:
        >>> series('iter_12') == series('iter_7.partial')
        True
    """
    return re.sub(r"\d+", "0", parts(name)[0])


def replaced_patterns(pattern: str) -> tuple[str, str]:
    """Returns patterns of what was there before another takes its place."""
    token = "[0-9a-f]" * TOKEN_DIGITS
    return pattern + REPLACED, aside(pattern, token, REPLACED)


def check_name(name: str | os.PathLike) -> None:
    """Refuses a path whose last part is no name for a snapshot.

    Raises:
        ValueError: If nothing that has this name would be found again.
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
    """Returns the name of the file with what a later replica has otherwise.

    Args:
        replica (int): Its number, from 1.
        name (str): The name of the file that the first replica has written.
    """
    return f"replica-{replica}-{name}"


def has_files_of_snapshot(names: Iterable[str]) -> bool:
    """Returns whether a directory held a snapshot, whatever became of it.

    So a snapshot is told from a directory of another kind if its manifest is damaged.

    Args:
        names: The names of all that is in the directory.
    """
    # Network file systems keep files that are open under such names.
    names = {name for name in names if not name.startswith(".nfs")}
    ours = {name for name in names if _FILES.fullmatch(name)}
    return {COMMON, stage_file(0)} <= ours or (ours == names and ours > {MANIFEST})


def names_in(directory: Path) -> list[str]:
    """Returns the sorted names in a directory; none if there is no directory.

    Raises:
        SnapshotError: If it cannot be looked into, with the cause.
    """
    with naming(directory, "look for snapshots in"):
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []


def is_file(path: Path) -> bool:
    """Returns whether there is a file, where ``Path.is_file`` takes errors for no.

    Raises:
        SnapshotError: If one cannot look, with the cause.
    """
    return stat.S_ISREG(mode_of(path))


def is_folder(path: Path) -> bool:
    """Returns whether there is a directory, as :func:`is_file`."""
    return stat.S_ISDIR(mode_of(path))


def mode_of(path: Path) -> int:
    """Returns the mode of what is there, as :func:`is_file`; 0 if nothing is."""
    with naming(path, "look at"):
        try:
            return os.stat(path).st_mode
        except OSError as error:
            # A link that leads nowhere, or to itself, is nothing either.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise


def matching(directory: Path, pattern: str) -> Iterator[Path]:
    """Yields what is in a directory and fits a pattern.

    ``Path.glob`` passes over directories that it cannot look into.

    Args:
        directory: Where to look.
        pattern: With ``*``, ``?`` and ``[]`` as in names of files; it may have ``/``,
            and ``**`` for any number of directories.

    Raises:
        SnapshotError: If a directory cannot be looked into, with the cause.
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
