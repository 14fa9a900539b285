"""Shows circles of modules: ``python -m tests.support.import_circles``.

Imports inside functions count, and so do the names that a package loads when they are
first used (`divisible.lazy_names`). Imports for annotations alone do not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import grimp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tests.support.processes import ROOT

PACKAGES = (
    "chainer_compat",
    "chainer_kernels",
    "data_parallel",
    "divisible",
    "heterogeneous",
    "mixed_precision",
    "model_compression",
    "pipeline",
)


def import_graph() -> grimp.ImportGraph:
    """Returns who imports whom among all modules of the product."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph(
        *PACKAGES, exclude_type_checking_imports=True, cache_dir=None
    )
    for package in PACKAGES:
        for module in _lazy_modules(ROOT / package / "__init__.py"):
            graph.add_import(importer=package, imported=module)
    return graph


def _lazy_modules(path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_names":
            yield from ast.literal_eval(node.args[1])


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
