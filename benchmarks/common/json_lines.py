"""Files with a line of JSON for each measurement, written as soon as it is made."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def append(path: Path, content: dict[str, Any]) -> None:
    """Adds a line to a file, which is made if it does not exist.

    A line that a killed program has left unfinished is ended first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else b""
    is_torn = before != b"" and not before.endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * is_torn + json.dumps(content) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the contents of all lines; an unfinished line is left out.

    A file that does not exist has no lines.
    """
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found
