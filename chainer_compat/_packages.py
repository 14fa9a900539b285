"""The packages of this project, and files of users that hide them.

Python finds modules beside a script before installed ones. If a user's script, or a
module beside it, is called ``pipeline.py`` or ``divisible.py``, that one is imported
under the package's name.
"""

import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Optional

#: Names of the packages, from the lowest to the highest.
NAMES = (
    "chainer_compat",
    "chainer_kernels",
    "divisible",
    "data_parallel",
    "heterogeneous",
    "mixed_precision",
    "model_compression",
    "pipeline",
    "torch_layers",
)
# A module of each package that no other package of that name has.
_MARKS = {
    "chainer_compat": "_packages",
    "chainer_kernels": "update_rules",
    "divisible": "lazy_names",
    "data_parallel": "two_roundings",
    "heterogeneous": "baselines",
    "mixed_precision": "momentum_sgd16",
    "model_compression": "scores",
    "pipeline": "trainer_lines",
    "torch_layers": "saved_tensors",
}


def check(package: str) -> None:
    """Checks that a package finds those below it; called when it is imported.

    Args:
        package (str): Name of the package, one of `NAMES`.

    Raises:
        ImportError: If a user's file hides a package.
    """
    for name in NAMES[: NAMES.index(package)]:
        path = _stranger(_spec(name), name)
        if path is not None:
            raise ImportError(
                f"{path} hides the package {name!r}, which {package!r} needs: rename"
                f" it, or start the script with 'divisible run', which finds the"
                f" packages first"
            )
    # "python -m pipeline script.py" runs a user's pipeline.py.
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "" if started is None else started.name.partition(".")[0]
    if name in NAMES:
        path = _stranger(_spec(name), name)
        if path is not None:
            warnings.warn(
                f"'python -m {name}' runs {path}, not the package {name!r} of this"
                f" project: rename it, or start your script with 'divisible run"
                f" SCRIPT'",
                RuntimeWarning,
                stacklevel=3,
            )


def _spec(name: str) -> Optional[ModuleSpec]:
    try:
        return find_spec(name)
    except ValueError:
        # A module that a script has created.
        return None


def _stranger(spec: Optional[ModuleSpec], name: str) -> Optional[str]:
    """Returns the path of a module that is not this project's, or None."""
    if spec is None:
        return None
    places = spec.submodule_search_locations
    if places is None:
        return spec.origin
    is_ours = PathFinder.find_spec(f"{name}.{_MARKS[name]}", list(places)) is not None
    return None if is_ours else spec.origin or next(iter(places))
