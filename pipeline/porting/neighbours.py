"""Modules beside a script that it imports."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path


def neighbours(path: Path) -> list[Path]:
    """Returns the files of modules in the folder of a script that it imports.

    Modules that these import are among them. Files that this Python cannot parse are
    left out.

    Args:
        path: The script.
    """
    found: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        for each in _imported(waiting.pop(), path.parent):
            if each not in found and each != path:
                found[each] = None
                waiting.append(each)
    return list(found)


def source_of(path: Path) -> str:
    """Returns the text of a module, in the encoding that it declares.

    Raises:
        OSError: If it cannot be read.
        SyntaxError: If the encoding is unknown.
        ValueError: If it is not in this encoding.
    """
    with tokenize.open(path) as file:
        return file.read()


def _imported(path: Path, folder: Path) -> list[Path]:
    try:
        tree = ast.parse(source_of(path))
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [f"{module}.{alias.name}".strip(".") for alias in node.names]
            names.append(module)
    files = []
    for name in filter(None, names):
        base = folder.joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file() and _can_parse(file):
                files.append(file)
    return files


def _can_parse(path: Path) -> bool:
    try:
        ast.parse(source_of(path))
    except (OSError, SyntaxError, ValueError):
        return False
    return True
