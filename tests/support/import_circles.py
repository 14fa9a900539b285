"""Shows circles of modules: ``python -m tests.support.import_circles``.

All of these count as imports: those inside functions, those for annotations alone, and
the names that a package loads when they are first used (`divisible.lazy_names`). So do
modules that `importlib.import_module` loads by a name that the source spells::

    import_module("package.module")       that module
    import_module(f"package.{name}")      each module of the package, but the importer
    import_module(name)                   none: the source does not say which
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tests.support.processes import PACKAGES, ROOT


def import_graph(
    packages: tuple[str, ...] = PACKAGES, root: Path = ROOT
) -> grimp.ImportGraph:
    """Returns who imports whom among all modules of some packages.

    Args:
        packages: Names of the packages.
        root: The folder that they are in.
    """
    sys.path.insert(0, str(root))
    try:
        graph = grimp.build_graph(*packages, cache_dir=None)
    finally:
        sys.path.remove(str(root))
    for importer in sorted(graph.modules):
        for imported in _by_name(_source(root, importer), graph):
            if imported in graph.modules and imported != importer:
                graph.add_import(importer=importer, imported=imported)
    return graph


def _source(root: Path, module: str) -> ast.Module:
    place = root.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _by_name(source: ast.Module, graph: grimp.ImportGraph) -> Iterator[str]:
    """Yields the modules that a source loads by their names."""
    for node in ast.walk(source):
        if not isinstance(node, ast.Call):
            continue
        function = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if function == "lazy_names":
            yield from _table(node.args[1], source)
        elif function == "import_module" and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield name.value
            elif isinstance(name, ast.JoinedStr):
                yield from _below(name, graph)


def _table(argument: ast.expr, source: ast.Module) -> dict[str, list[str]]:
    """Returns a table that is written as an argument, or has a name in its module."""
    if isinstance(argument, ast.Name):
        for node in source.body:
            names = node.targets if isinstance(node, ast.Assign) else ()
            if argument.id in [getattr(name, "id", None) for name in names]:
                return ast.literal_eval(node.value)
    return ast.literal_eval(argument)


def _below(name: ast.JoinedStr, graph: grimp.ImportGraph) -> frozenset[str]:
    """Returns the modules that ``f"package.{name}"`` may name."""
    if len(name.values) != 2 or not isinstance(name.values[0], ast.Constant):
        return frozenset()
    package, _, rest = name.values[0].value.rpartition(".")
    is_known = not rest and package in graph.modules
    return graph.find_children(package) if is_known else frozenset()


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Returns the sets of modules that import each other, around some corners."""
    modules = sorted(graph.modules)
    number = {module: i for i, module in enumerate(modules)}
    edges = [
        (number[module], number[imported])
        for module in modules
        for imported in graph.find_modules_directly_imported_by(module)
    ]
    rows, columns = np.array(edges).T
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(modules),) * 2)
    n, group = connected_components(matrix, connection="strong")
    members = [[modules[i] for i in np.flatnonzero(group == k)] for k in range(n)]
    return [names for names in members if len(names) > 1]


if __name__ == "__main__":
    found = circles(import_graph())
    for names in found:
        print(" <-> ".join(names))
    print(f"{len(found)} circles of modules")
    sys.exit(bool(found))
