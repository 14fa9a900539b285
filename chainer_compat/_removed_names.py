"""Removed names of NumPy and Python, given back at the first use of one.

::

    numpy.float     -> numpy.__getattr__('float') below
                    -> _numpy_aliases.enable(), and one warning
                    -> numpy.float is float, as all of the names

Modules that Chainer renamed are found by ``_moved_modules``, classes of functions by
``_function_classes``, and modules that Chainer's modules imported by ``_passed_on``.
Devices are compared with numbers by ``_device_numbers``. Methods of classes, such as
``Thread.isAlive``, are added at once, without a warning.
"""

import inspect
import sys
import threading
from contextlib import contextmanager

import chainer_compat
from chainer_compat import _moved_modules
from chainer_compat._after_import import after_import
from chainer_compat._same_module import spec_of
from chainer_compat._warned import tell

_enabled = []
# Modules that change Chainer's modules when they are loaded.
_OF_CHAINER = "_function_classes", "_passed_on", "_device_numbers"


def enable() -> None:
    """Gives the names back from their first use on."""
    if _enabled:
        return
    _enabled.append(True)
    after_import("numpy", _watch_numpy)
    _watch_python()
    _moved_modules.enable()
    for name in _OF_CHAINER:
        chainer_compat.plug_in(f"chainer_compat.{name}")


class _Finder:
    """Finds modules that NumPy removed, after all other finders."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Returns the spec of a removed module of NumPy, else None."""
        if not name.startswith("numpy."):
            return None
        from chainer_compat import _numpy_aliases

        module = _numpy_aliases.modules().get(name.partition(".")[2])
        if module is None:
            return None
        # Another thread that gives names back may wait for Python's import lock, which
        # this one has.
        if not _lock.acquire(blocking=False):
            return spec_of(name, module)
        try:
            with _alone(name) as is_alone:
                if not is_alone:
                    return None
                _give_numpy_back(name)
            return spec_of(name, sys.modules[name])
        finally:
            _lock.release()


def _watch_numpy(numpy) -> None:
    from chainer_compat import _numpy_aliases

    def give(name):
        if name in _numpy_aliases.catalogue():
            _give_numpy_back(f"numpy.{name}")

    sys.meta_path.append(_Finder)
    _numpy_aliases.enable_quiet_parts()
    _at_first_use(numpy, give)
    _at_first_use(numpy.lib, lambda name: give(f"lib.{name}"))


def _give_numpy_back(name) -> None:
    from chainer_compat import _numpy_aliases

    _tell("NumPy", name, _numpy_aliases.enable())


def _tell(who, name, added) -> None:
    tell(
        who,
        f"this script uses {name}, which {who} removed. chainer_compat gave back this"
        f" name and {len(added) - 1} others",
    )


def _watch_python() -> None:
    from chainer_compat import _python_aliases

    by_module = {}
    for place, name, value in _python_aliases.missing():
        if inspect.ismodule(place):
            by_module.setdefault(place, {})[name] = value
        else:
            setattr(place, name, value)
    for module, names in by_module.items():
        if any(map(inspect.ismodule, names.values())):
            # A module, such as xml.etree.cElementTree, is imported by its name.
            for name, value in names.items():
                setattr(module, name, value)
                sys.modules[f"{module.__name__}.{name}"] = value
            continue

        def give(name, module=module, names=names):
            if name in names:
                _tell("Python", f"{module.__name__}.{name}", _python_aliases.enable())

        _at_first_use(module, give)


# The name that is being given back, and the lock of the thread that does it.
_giving = []
_lock = threading.RLock()


@contextmanager
def _alone(name):
    """Waits for other threads; yields whether this one gives back no name so far.

    While it does, it gives back no other name, as this one is looked for among them.
    """
    with _lock:
        if _giving:
            yield False
            return
        _giving.append(name)
        try:
            yield True
        finally:
            _giving.clear()


def _at_first_use(module, give) -> None:
    """Calls a function when a module lacks a name, and looks for the name again."""
    before = vars(module).get("__getattr__")

    def look_up(name):
        # Python itself looks up names with underscores.
        if not name.startswith("__"):
            with _alone(name) as is_alone:
                if is_alone:
                    give(name)
            if name in vars(module):
                return vars(module)[name]
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = look_up
