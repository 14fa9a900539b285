"""Calls functions when a module has been imported, or at once if it was before."""

import sys


class _Loader:
    """Loads a module as its own loader does, and then calls functions."""

    def __init__(self, loader, functions) -> None:
        self._loader = loader
        self._functions = functions

    def create_module(self, spec):
        """Returns what the module's own loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        """Runs the module, and calls the functions with it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in self._functions:
            function(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder:
    """Finds the modules that somebody waits for, by the other finders."""

    waiting = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Returns the spec of a module that is waited for, else None."""
        functions = cls.waiting.get(name)
        if functions is None:
            return None
        spec = _find(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, functions)
        return spec


def _find(name, path, target):
    for finder in sys.meta_path:
        if finder is _Finder or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def after_import(name: str, function) -> None:
    """Calls a function with a module, once it is imported.

    Args:
        name (str): Full name of the module.
        function: Function of the module.
    """
    if name in sys.modules:
        function(sys.modules[name])
        return
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    _Finder.waiting.setdefault(name, []).append(function)
