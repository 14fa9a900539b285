"""CuPy's former module names, and a module in its place where it is not installed.

::

    import cupy.core            cupy._core, since CuPy 8
    import cupy.cuda.cudnn      cupy_backends.cuda.libs.cudnn, up to CuPy 13
    import cupy                 without CuPy: a stand-in; each use of it names the cause
"""

import importlib
import sys

from chainer_compat import _no_cupy
from chainer_compat._same_module import spec_of
from chainer_compat._warned import tell

#: Former names of modules, and the places that they had since, the newest first.
RENAMED = {
    "cupy.core": ("cupy._core",),
    "cupy.util": ("cupy._util",),
    "cupy.creation": ("cupy._creation",),
    "cupy.manipulation": ("cupy._manipulation",),
    "cupy.math": ("cupy._math",),
    "cupy.sorting": ("cupy._sorting",),
    "cupy.statistics": ("cupy._statistics",),
    "cupy.cuda.cublas": ("cupy_backends.cuda.libs.cublas",),
    "cupy.cuda.cudnn": ("cupy_backends.cuda.libs.cudnn",),
    "cupy.cuda.curand": ("cupy_backends.cuda.libs.curand",),
    "cupy.cuda.cusolver": ("cupy_backends.cuda.libs.cusolver",),
    "cupy.cuda.cusparse": ("cupy_backends.cuda.libs.cusparse",),
    "cupy.cuda.driver": ("cupy_backends.cuda.api.driver",),
    "cupy.cuda.nvrtc": ("cupy_backends.cuda.libs.nvrtc",),
    "cupy.cuda.runtime": ("cupy_backends.cuda.api.runtime",),
    "cupy.cudnn": ("cupyx.cudnn",),
}
#: Former names that no CuPy from 14 on has, and what to do.
GONE = {
    "cupy.cuda.cudnn": "CuPy 14 knows no cuDNN: install cupy-cuda12x below 14 for"
    " scripts that call it, or leave convolutions to Chainer",
    "cupy.cudnn": "CuPy 14 knows no cuDNN: install cupy-cuda12x below 14 for scripts"
    " that call it, or leave convolutions to Chainer",
}


def enable() -> None:
    """Finds CuPy under its former names, or a stand-in for it."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)


class _Finder:
    """Finds modules of CuPy that no other finder has found."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Returns the spec of a former name of CuPy, else None."""
        if name.partition(".")[0] != "cupy":
            return None
        if name == "cupy":
            return _no_cupy.spec()
        if isinstance(sys.modules.get("cupy"), _no_cupy.NoCupy):
            return _no_cupy.spec_within(name)
        return _renamed(name)


def _renamed(name):
    """Returns the spec of a module that CuPy has under another name."""
    former = next((f for f in RENAMED if name == f or name.startswith(f + ".")), None)
    if former is None:
        return None
    for present in RENAMED[former]:
        today = present + name[len(former) :]
        try:
            module = importlib.import_module(today)
        except ImportError:
            continue
        tell(
            f"CuPy: {former}",
            f"this script imports {name}, which CuPy renamed: chainer_compat gave it"
            f" {today}",
        )
        return spec_of(name, module)
    if former in GONE:
        raise ImportError(f"{name}: {GONE[former]}", name=name)
    return None
