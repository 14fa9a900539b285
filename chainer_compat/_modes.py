"""Help for old scripts that is turned on from outside of them.

::

    CHAINER_COMPAT=names,cupy python train.py
    python -m chainer_compat run train.py

    names      names that NumPy, Python and Chainer removed, from their first use on
    cupy       CuPy's former module names; without CuPy, a module that names the cause
    chainer1   arguments, functions and classes of Chainer 1
    cpu        without CuPy: the CPU in place of GPUs

A script that uses none of it only starts a little later.
"""

import os
import warnings

#: Variable of the environment with the names of modes.
VARIABLE = "CHAINER_COMPAT"
#: Modes that ``python -m chainer_compat run`` and ``divisible run`` turn on.
DEFAULT = "names,cupy"

# Name of the mode, and the module that has its function enable().
_MODULES = {
    "names": "chainer_compat._removed_names",
    "cupy": "chainer_compat._cupy_names",
    "chainer1": "chainer_compat._chainer1",
    "cpu": "chainer_compat._gpus_on_cpu",
}


def parse(text: str) -> list:
    """Returns the names of modes in a text such as ``'names,cupy'``.

    Raises:
        ValueError: If a name belongs to no mode.
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in _MODULES:
            raise ValueError(
                f"there is no mode {name!r} of chainer_compat: the modes are "
                f"{', '.join(_MODULES)}"
            )
    return found


def enable(text: str) -> None:
    """Turns modes on, in this process and in those that it starts.

    Args:
        text (str): Names of modes, separated by commas.

    Raises:
        ValueError: If a name belongs to no mode.
        RuntimeError: If a mode needs to be turned on before Chainer is imported.
    """
    import importlib

    names = parse(text)
    for name in names:
        importlib.import_module(_MODULES[name]).enable()
    before = parse(os.environ.get(VARIABLE, ""))
    os.environ[VARIABLE] = ",".join(dict.fromkeys(before + names))


def enable_from_environment() -> None:
    """Turns on the modes of the environment; warns if there is no such mode."""
    text = os.environ[VARIABLE]
    try:
        parse(text)
    except ValueError as error:
        # An error here would end up in the start of every Python program.
        warnings.warn(
            f"{VARIABLE}={text}: {error}. Nothing was turned on",
            RuntimeWarning,
            stacklevel=2,
        )
        del os.environ[VARIABLE]
    else:
        enable(text)
