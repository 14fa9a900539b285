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


def sources(path: Path) -> dict[str, str]:
    """Returns the text of each module beside a script that it imports, by its name.

    Args:
        path: The script.
    """
    found = {}
    for each in neighbours(path):
        *folders, last = each.relative_to(path.parent).with_suffix("").parts
        name = folders if last == "__init__" else [*folders, last]
        found[".".join(name)] = source_of(each)
    return found


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
    bases: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bases += [folder.joinpath(*alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot means the module's own folder, and each further one that above.
            for base in [folder, path.parent, *path.parent.parents][node.level :][:1]:
                module = base.joinpath(*(node.module or "").split("."))
                bases += [module / alias.name for alias in node.names]
                bases.append(module)
    files = []
    for base in bases:
        if folder not in base.parents:
            continue
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
