"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes the functions for a package with names from modules that load later.

    Args:
        package: The package's own name.
        modules: The names that each module has.

    Returns:
        The package's ``__getattr__``, ``__dir__`` and ``__all__``.

    Example:
        >>> get, _, names = lazy_names("divisible", {"divisible.files": ["write_json"]})
        >>> names, get("write_json").__module__
        (['write_json'], 'divisible.files')
    """
    module_of = {name: module for module, names in modules.items() for name in names}
    everything = sorted(module_of)

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        # Next time Python finds the name in the package, without this function.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: everything, everything
