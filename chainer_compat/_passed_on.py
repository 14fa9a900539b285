"""Modules that Chainer's modules once imported, for scripts that take them from there.

::

    from chainer.links.connection.linear import functools     import functools
    from chainer.functions.activation.relu import cuda        chainer.backends.cuda

Chainer's modules import less than they did, so such a line has nothing to import.
"""

import importlib

from chainer_compat._warned import tell

#: Modules of others that modules of Chainer 1 to 6 imported.
_OTHERS = """
    collections contextlib copy ctypes datetime functools heapq inspect itertools json
    math multiprocessing numpy operator os random re shutil six sys tempfile threading
    time traceback warnings weakref
"""
#: Names of Chainer's own modules within others, and the modules.
_OWN = {
    "array": "chainer.utils.array",
    "configuration": "chainer.configuration",
    "conv": "chainer.utils.conv",
    "convert": "chainer.dataset.convert",
    "cuda": "chainer.backends.cuda",
    "function": "chainer.function",
    "function_node": "chainer.function_node",
    "initializers": "chainer.initializers",
    "link": "chainer.link",
    "reporter": "chainer.reporter",
    "type_check": "chainer.utils.type_check",
    "utils": "chainer.utils",
    "variable": "chainer.variable",
}
#: All names, with the modules that they stand for.
PASSED_ON = {**{name: name for name in _OTHERS.split()}, **_OWN}


def loaded(module) -> None:
    """Gives the names back to a module of Chainer that is no package."""
    name = module.__name__
    if not name.startswith("chainer.") or hasattr(module, "__path__"):
        return
    if "__getattr__" in vars(module):
        return

    def look_up(asked):
        if asked not in PASSED_ON:
            raise AttributeError(f"module {name!r} has no attribute {asked!r}")
        today = PASSED_ON[asked]
        tell(
            "passed on",
            f"this script takes {asked} from {name}, which no longer imports it:"
            f" write import {today}",
        )
        return importlib.import_module(today)

    module.__getattr__ = look_up
