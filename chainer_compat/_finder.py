"""Finds Chainer's modules and edits the source of those that need it.

The edits are exact replacements of text that keep the number of lines, so that
line numbers in tracebacks fit the file on disk. An edited module is compiled at
each start; every other module keeps its loader and its cached bytecode.
"""

import importlib.util
import sys
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path

from chainer_compat import (
    _caffe,
    _shim,
    _shims_chainer,
    _shims_chainermn,
    _shims_cupy,
    _shims_float16,
    _shims_numpy,
    _shims_onnx,
    _shims_python,
)

SHIMS = (
    _shims_python.SHIMS
    + _shims_chainer.SHIMS
    + _shims_numpy.SHIMS
    + _caffe.SHIMS
    + _shims_cupy.SHIMS
    + _shims_float16.SHIMS
    + _shims_chainermn.SHIMS
    + _shims_onnx.SHIMS
)
# Looked up for each of Chainer's 400 modules.
_BY_MODULE = {}
for item in SHIMS:
    _BY_MODULE.setdefault(item.module, []).append(item)

# Module name -> {shim name: Status}, for the modules loaded in this process.
_loaded = {}


class Loader(SourceFileLoader):
    """Passes a module to the plugged-in modules when it is loaded."""

    plugged_in = ()

    def exec_module(self, module) -> None:
        """Runs the module's code, and calls the plugged-in modules."""
        super().exec_module(module)
        for name in self.plugged_in:
            importlib.import_module(name).loaded(module)


class EditingLoader(Loader):
    """Compiles a module from its source file after applying its shims."""

    def get_code(self, fullname: str):
        """Returns the code of the edited source, past the bytecode cache."""
        path = self.get_filename(fullname)
        text = importlib.util.decode_source(self.get_data(path))
        text, statuses = edit(fullname, text, path)
        _loaded[fullname] = statuses
        for status in statuses:
            if status.state == _shim.FAILED:
                warnings.warn(
                    f"chainer_compat: {status.name} was not applied to {path}: "
                    f"{status.detail}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return compile(text, path, "exec", dont_inherit=True)


def _of_module(module):
    return _BY_MODULE.get(module, [])


def find_spec(name: str, path, target, asking):
    """Finds a module of Chainer with other finders than the one that asks; edits it."""
    spec = _find_original(name, path, target, asking)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return spec
    needs_edits = any(shim.why_not_needed() is None for shim in _of_module(name))
    loader = EditingLoader if needs_edits else Loader
    spec.loader = loader(spec.loader.name, spec.loader.path)
    spec.loader.plugged_in = asking.plugged_in
    return spec


def hand_over_loaded(name: str) -> None:
    """Calls the function ``loaded`` of a module with Chainer's loaded modules."""
    loaded = importlib.import_module(name).loaded
    for key, module in list(sys.modules.items()):
        # Other modules may be loaded when one of their attributes is asked for.
        if key.startswith("chainer.") and module is not None:
            loaded(module)


def _find_original(name, path, target, asking):
    for finder in sys.meta_path:
        if finder is asking:
            continue
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None


def edit(module: str, text: str, path: str):
    """Applies a module's shims to its source.

    Args:
        module (str): Full name of the module.
        text (str): Source of the module.
        path (str): Path of the source, for messages.

    Returns:
        tuple: The edited source and a list of :class:`Status`, one per shim.
    """
    statuses = []
    for shim in _of_module(module):
        state, detail = _shim.NOT_NEEDED, shim.why_not_needed()
        if detail is None:
            try:
                text = shim.apply(text)
                state, detail = _shim.APPLIED, path
            except _shim.TextNotFound as error:
                state, detail = _shim.FAILED, str(error)
        statuses.append(shim.status(state, detail))
    return text, statuses


def report() -> list:
    """Returns the status of every shim, loaded or not, in the table's order."""
    statuses = []
    for module in dict.fromkeys(shim.module for shim in SHIMS):
        statuses += _loaded.get(module) or _dry_run(module)
    return statuses


def _dry_run(module):
    """Returns the statuses that a module would get if it were loaded now."""
    shims = _of_module(module)
    if all(shim.why_not_needed() for shim in shims):
        return [shim.status(_shim.NOT_NEEDED, shim.why_not_needed()) for shim in shims]
    if module in sys.modules:
        detail = "Chainer was imported before chainer_compat"
        return [shim.status(_shim.FAILED, detail) for shim in shims]
    path = _source_path(module)
    if path is None:
        detail = "the module cannot be found"
        return [shim.status(_shim.FAILED, detail) for shim in shims]
    text = importlib.util.decode_source(path.read_bytes())
    statuses = edit(module, text, str(path))[1]
    return [
        status._replace(state=_shim.READY) if status.state == _shim.APPLIED else status
        for status in statuses
    ]


def _source_path(module):
    """Finds a module's file without importing the packages that it is in.

    Importing chainermn would start MPI.
    """
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    below = Path(spec.submodule_search_locations[0], *names)
    paths = below.with_suffix(".py"), below / "__init__.py"
    return next((path for path in paths if path.exists()), None)
