"""The manifest of a snapshot: JSON with a checksum, each field of which is checked."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from divisible.records import LIMIT, MOST_RANKS

MANIFEST = "manifest.json"
COMMON = "common.npz"
LOSS = "loss.npz"
# More than any model has, and few enough to be counted in no time.
_MOST_LAYERS = 2**20
_KIND = "snapshot"
_OF_REPLICA = re.compile(r"replica-([0-9]{1,9})-(.+)")
_FILES = re.compile(
    r"manifest\.json|common\.npz|(replica-\d+-)?(loss\.npz|stage-\d+\.npz)"
)


def stage_file(number: int) -> str:
    """Returns the name of a stage's file."""
    return f"stage-{number}.npz"


def replica_file(replica: int, name: str) -> str:
    """Returns the name of the file with what a later replica has otherwise.

    Args:
        replica (int): Its number, from 1.
        name (str): Of the file that the first replica has written.
    """
    return f"replica-{replica}-{name}"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what the manifest in a directory says, unchecked.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none of a snapshot.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.get("divisible") != _KIND:
        raise ValueError("it is not the manifest of a snapshot")
    return content


def is_snapshot(folder: Path) -> bool:
    """Says whether a directory has the manifest of a snapshot."""
    try:
        read_manifest(folder)
    except (OSError, ValueError):
        return False
    return True


def has_files_of_snapshot(names: Iterable[str]) -> bool:
    """Says whether what a directory holds was a snapshot, whatever became of it.

    So a snapshot is told from a directory of another kind if its manifest is damaged.

    Args:
        names: Of all that is in the directory.
    """
    # What network file systems keep of files that are open has such names.
    names = {name for name in names if not name.startswith(".nfs")}
    ours = {name for name in names if _FILES.fullmatch(name)}
    return {COMMON, stage_file(0)} <= ours or (ours == names and ours > {MANIFEST})


def labelled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with what all manifests begin with, as they are read again."""
    # Tuples as lists, keys as texts.
    return json.loads(json.dumps({"divisible": _KIND, **fields}))


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest, as hexadecimal digits."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a manifest in this format.

    Raises:
        ValueError: With the field that is missing, unknown, or of another kind.
    """
    fields = {k: v for k, v in content.items() if k not in ("divisible", "format")}
    # Without replicas it is not written.
    fields.setdefault("n_replicas", 1)
    for name, (fits, words) in _FIELDS.items():
        if name not in fields:
            raise ValueError(f"the field {name!r} is missing")
        if not fits(fields[name]):
            raise ValueError(
                f"the field {name!r} must be {words}, not {_short(fields[name])}"
            )
    unknown = sorted(fields.keys() - _FIELDS.keys())
    if unknown:
        raise ValueError(f"the field {_short(unknown[0])} is unknown")
    fields["layer_ranges"] = [tuple(pair) for pair in fields["layer_ranges"]]
    expected = {COMMON, *map(stage_file, range(len(fields["layer_ranges"])))}
    own = {*expected - {COMMON}, LOSS}
    for name in sorted(expected ^ fields["files"].keys()):
        if name != LOSS and not _is_of_replica(name, fields["n_replicas"], own):
            raise ValueError(
                f"the field 'files' has {'no' if name in expected else 'another'} file"
                f" {_short(name)}"
            )
    return fields


def _is_of_replica(name: str, n_replicas: int, of_first: Collection[str]) -> bool:
    """Says whether a later replica may have written a file.

    Args:
        name: The name of the file.
        n_replicas: The number of replicas.
        of_first: The names of the files that the first one may have written.
    """
    match = _OF_REPLICA.fullmatch(name)
    return (
        match is not None
        and 0 < int(match[1]) < n_replicas
        and match[2] in of_first
        and name == replica_file(int(match[1]), match[2])
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_count(value: Any, most: int = LIMIT - 1) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value <= most


def _is_number_of_ranks(value: Any) -> bool:
    return _is_count(value, MOST_RANKS) and value > 0


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Beyond that an integer is no float.
    return is_number and abs(value) < 1e300 and math.isfinite(value)


def _are_ranges(value: Any) -> bool:
    end = 0
    for pair in value if isinstance(value, list) else []:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(_is_count(position, _MOST_LAYERS) for position in pair)
        ):
            return False
        if pair[0] != end or pair[1] <= end:
            return False
        end = pair[1]
    return end > 0


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(entry, dict)
        and set(entry) == {"bytes", "sha256"}
        and _is_count(entry["bytes"])
        and isinstance(entry["sha256"], str)
        and re.fullmatch("[0-9a-f]{64}", entry["sha256"])
        for entry in value.values()
    )


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


_FIELDS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "layer_ranges": (
        _are_ranges,
        "ranges [start, end] one after the other, from 0 to 2**20 at most",
    ),
    "files": (_are_files, "the 'bytes' and the 'sha256' of each file"),
    "time": (_is_time, "a number of seconds"),
    "n_ranks": (_is_number_of_ranks, f"an integer from 1 to {MOST_RANKS}"),
    "n_replicas": (_is_number_of_ranks, f"an integer from 1 to {MOST_RANKS}"),
    "n_steps": (_is_count, "an integer from 0 to 2**63 - 1"),
    "schedule": (_is_dict, "a dictionary"),
    "versions": (_is_dict, "a dictionary"),
    "values": (_is_dict, "a dictionary"),
}
