"""Chainer 7.8.1 and ChainerMN on today's Python, NumPy, CuPy and mpi4py.

Chainer is installed unchanged from PyPI; no file of it is changed on disk. An import
hook edits a few lines of a few of its modules while they are loaded:

    import chainer.variable
      -> hook below: not Chainer? next finder
      -> chainer_compat._finder: finds the file, gives it a loader that edits
      -> chainer_compat._shims_*: which lines, why, and from which version on

The hook is installed by ``import chainer_compat``, which the file
``chainer_compat.pth`` in site-packages does whenever the interpreter starts. So this
module must stay tiny: it imports only what Python itself has imported, and the modules
that do the work are imported with Chainer.

Where ``.pth`` files are not read (``python -S``, ``pip install --target``), put
``import chainer_compat`` before ``import chainer``.

``python -m chainer_compat`` prints what was found and what was repaired.
``python -m chainer_compat run SCRIPT`` runs an old script as it is. So does
``CHAINER_COMPAT=names,cupy`` in the environment: see ``chainer_compat/_modes.py``.

Files of weights are read without running code that is in them; a file that needs more
than ``None`` is refused until :func:`chainer_compat.npz.allow_pickle` allows it.

The hook cannot hide these changes from a user's own script:

- ``float32_array * numpy.float64(2)`` is float64 since NumPy 2.0, and Chainer then
  refuses to mix it with float32. Multiply by ``2.0`` or by an array's own type.
- ``numpy.float``, ``numpy.int`` and others are gone: :func:`enable_numpy_aliases`.
- ``collections.Iterable``, ``inspect.getargspec`` and others are gone:
  :func:`enable_python_aliases`.
- ``float(x)`` and ``int(x)`` of an array with one element are errors since NumPy 2.4,
  and ragged arrays since 1.24. An older NumPy accepts them.
- CuPy finds CUDA in its extra ``cupy-cuda12x[ctk]`` or in the system. Without either
  Chainer reports that there is no GPU. CuPy 14 knows no cuDNN: Chainer's own kernels
  run instead, or those of ``chainer_kernels``.
"""

import os
import sys

__all__ = [
    "enable_numpy_aliases",
    "enable_python_aliases",
    "install",
    "plug_in",
    "report",
]


class _Hook:
    """First on ``sys.meta_path``; handles Chainer's names only."""

    # Names of modules; see plug_in().
    plugged_in = []

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Returns the spec of a Chainer module, else None, as finders do."""
        if name.partition(".")[0] not in ("chainer", "chainermn", "onnx_chainer"):
            return None
        from chainer_compat import _finder

        return _finder.find_spec(name, path, target, _Hook)


def install() -> None:
    """Makes ``import chainer`` work in this process; repeated calls do nothing.

    Importing ``chainer_compat`` has called it already.
    """
    if _Hook in sys.meta_path:
        return
    sys.meta_path.insert(0, _Hook)
    if "chainer" in sys.modules:
        import warnings

        warnings.warn(
            "chainer was imported before chainer_compat, so the modules of Chainer "
            "that are loaded already stay as they are: put 'import chainer_compat' "
            "before 'import chainer'",
            RuntimeWarning,
            stacklevel=2,
        )


def plug_in(module: str) -> None:
    """Passes each of Chainer's modules to another module when it is loaded.

    Args:
        module (str): Name of a module with a function ``loaded``. The module is
            imported with Chainer, and the function is called with each of Chainer's
            modules, including those that are loaded already.
    """
    if module in _Hook.plugged_in:
        return
    _Hook.plugged_in.append(module)
    if "chainer" in sys.modules:
        from chainer_compat import _finder

        _finder.hand_over_loaded(module)


def enable_numpy_aliases() -> list:
    """Gives ``numpy`` back the names that it removed.

    For users' own scripts that still use ``np.float``, ``np.int``, ``np.NINF``,
    ``np.asscalar``, ``np.find_common_type`` or ``np.lib.pad``: all types, constants,
    functions and modules that NumPy removed from 1.22 to 2.5, with few exceptions
    (``chainer_compat/_numpy_aliases.py`` lists both). No name that NumPy has is
    changed, except that ``np.fromstring`` reads binary data again where it refuses to.
    Nothing in Chainer needs these names, so they are added only by this call.

    These do not come back: methods of arrays (``itemset``, ``newbyteorder``, ``ptp``,
    ``tostring``), and arguments (``np.percentile(interpolation=...)``,
    ``np.histogram(normed=...)``), which have other names today.

    Returns:
        list: The names that were added, with a point for those in a submodule.

    Example:
        >>> import chainer_compat, numpy as np
        >>> added = chainer_compat.enable_numpy_aliases()
        >>> np.zeros(2, np.float).dtype
        dtype('float64')
    """
    from chainer_compat import _numpy_aliases

    return _numpy_aliases.enable()


def enable_python_aliases() -> list:
    """Gives the standard library back names that Python removed from 3.8 on.

    Users' own scripts, and packages of Chainer's years, may still use them. Examples
    are ``collections.Iterable``, which chainerrl uses for recurrent models,
    ``inspect.getargspec``, ``time.clock``, ``fractions.gcd``, ``base64.encodestring``,
    ``thread.isAlive()``, ``configparser.SafeConfigParser``, ``xml.etree.cElementTree``
    and ``self.assertEquals``. No name that Python has is changed, and nothing in
    Chainer needs these names, so they are added only by this call.

    These do not come back: whole modules (``distutils`` and ``pkg_resources`` are in
    ``setuptools<81``, ``imp`` in ``zombie-imp``), and methods of types written in C,
    such as ``array.array.tostring``.

    Returns:
        list: The names that were added, with their module.

    Example:
        >>> import chainer_compat, collections
        >>> added = chainer_compat.enable_python_aliases()
        >>> isinstance([], collections.Iterable)
        True
    """
    from chainer_compat import _python_aliases

    return _python_aliases.enable()


def report() -> list:
    """Returns for each shim whether it was applied and, if not, why.

    Returns:
        list: One :class:`chainer_compat._shim.Status` (name, module, state,
        detail, why) for each entry of the table, in its order.
    """
    from chainer_compat import _finder

    return _finder.report()


install()
if os.environ.get("CHAINER_COMPAT"):
    from chainer_compat import _modes

    _modes.enable_from_environment()
