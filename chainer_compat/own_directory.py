"""Directories whose files no other user can have written.

Files in such a directory may be run when they are read, and old ones may be deleted. So
no other user may change the files, nor replace the directory: every directory above it
counts, and every link on the way::

    /          root's
    home       root's
    me         this user's
    .cache     a link of this user's or of root's: its target is checked as well
    compiled   this user's, and nobody else may write to it
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

# The kernel follows as many links.
_MOST_LINKS = 40
_ROOT = 0


def own_directory(path: str | os.PathLike, make: bool = True) -> Path:
    """Returns a directory that only this user, and root, can change.

    Args:
        path: An absolute path.
        make: Whether to make a directory that is missing, for this user alone.

    Returns:
        Path: The directory's path without links.

    Raises:
        PermissionError: If another user could change what is in the directory. The
            text is a cause and a cure.
        OSError: If there is no such directory, or none can be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     own_directory(f"{folder}/new").stat().st_mode & 0o777 == 0o700
        True
    """
    path = os.fspath(path)
    if not os.path.isabs(path):
        raise NotADirectoryError(
            f"{path!r} depends on where the script is started. Give an absolute path"
        )
    place, names, n_links = Path("/"), _names(path), 0
    _check_way(place)
    while names:
        name = names.pop()
        if name == "..":
            place = place.parent
            continue
        here = place / name
        is_link = _found(here, make)
        if not is_link:
            _check_way(here)
            place = here
            continue
        n_links += 1
        if n_links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        names += _names(target)
        if os.path.isabs(target):
            place = Path("/")
    _check_end(place)
    return place


def _names(path: str) -> list[str]:
    """Returns the parts of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _found(path: Path, make: bool) -> bool:
    """Checks the owner of a file on the way, and returns whether it is a link."""
    if make and not os.path.lexists(path):
        # Another rank may be faster.
        path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid not in (os.geteuid(), _ROOT):
        raise PermissionError(
            f"{path} belongs to {_user(status.st_uid)}, who could put other files"
            f" there. Give a directory of your own"
        )
    return stat.S_ISLNK(status.st_mode)


def _check_way(path: Path) -> None:
    """Checks a directory on the way to the one that is asked for."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(
            errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path)
        )
    # In a sticky directory, as /tmp is, only its owner can rename a file.
    if not status.st_mode & stat.S_ISVTX:
        _check_writers(path, status)


def _check_end(path: Path) -> None:
    status = path.lstat()
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to {_user(status.st_uid)}. Give a directory of your own"
        )
    _check_writers(path, status)


def _check_writers(path: Path, status: os.stat_result) -> None:
    is_for_group = status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)
    if status.st_mode & stat.S_IWOTH or is_for_group:
        raise PermissionError(
            f"other users can write to {path}. Take that from them by chmod go-w"
            f" {path}, or give another directory"
        )


def _is_private(number: int) -> bool:
    """Returns whether a group is this user's alone.

    Many systems make a group of a user's name for each user, and let it write to
    whatever the user makes. Root's group is the one of all users of some containers.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_named_alike = user.pw_gid == number and user.pw_name == group.gr_name
    return number != _ROOT and is_named_alike and {*group.gr_mem} <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"
