"""Files that are there completely or not at all."""

from __future__ import annotations

import json
import os
from typing import Any


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes JSON; the file appears only when it is complete.

    Args:
        path: Where to write.
        content: Dictionaries, lists, texts and finite numbers.
    """
    aside = f"{os.fspath(path)}.tmp{os.getpid()}"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(aside, path)
