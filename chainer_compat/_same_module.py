"""A module that is imported under a second name."""

from importlib.machinery import ModuleSpec


class _Same:
    """Loader of a module that exists."""

    def __init__(self, module) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec):
        """Returns the module."""
        return self._module

    def exec_module(self, module) -> None:
        """Leaves the module as it is; the import has changed its spec."""
        module.__spec__ = self._spec


def spec_of(name: str, module) -> ModuleSpec:
    """Returns a spec by which a module is imported under another name."""
    return ModuleSpec(name, _Same(module))
