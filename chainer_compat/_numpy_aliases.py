"""Names that NumPy removed from 1.22 to 2.5, for scripts that still use them.

The tables have the equivalent of each name. They follow the release notes of NumPy and
its list of expired attributes, ``numpy/_expired_attrs_2_0.py``. A name in a submodule
is written with a point, such as ``'lib.pad'``.

Names that do not come back: ``fv``, ``irr`` and other financial functions, which are in
the package ``numpy_financial``; names of ``numpy.testing`` that need nose;
``numpy.distutils`` and ``numpy.array_api``.
"""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy

from chainer_compat import (
    _numpy_compat,
    _numpy_dual,
    _numpy_functions,
    _numpy_types,
)


def _find(path):
    """Returns the object of a name in NumPy, or None; warnings of NumPy are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return operator.attrgetter(path)(numpy)
        except AttributeError:
            return None


_PYTHON = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "long": int,
    "unicode": str,
    "math": math,
    "os": os,
    "sys": sys,
    "warnings": warnings,
    "lib.math": math,
}

# Old names, with NumPy's present names.
_RENAMED = {
    "float_": "float64",
    "complex_": "complex128",
    "cfloat": "complex128",
    "singlecomplex": "complex64",
    "longcomplex": "clongdouble",
    "clongfloat": "clongdouble",
    "longfloat": "longdouble",
    "string_": "bytes_",
    "unicode_": "str_",
    "bool8": "bool_",
    "bytes0": "bytes_",
    "int0": "intp",
    "object0": "object_",
    "str0": "str_",
    "uint0": "uintp",
    "void0": "void",
    "typeDict": "sctypeDict",
    "Inf": "inf",
    "Infinity": "inf",
    "infty": "inf",
    "PINF": "inf",
    "NaN": "nan",
    "NAN": "nan",
    "product": "prod",
    "cumproduct": "cumprod",
    "alltrue": "all",
    "sometrue": "any",
    "rank": "ndim",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "mat": "asmatrix",
    "byte_bounds": "lib.array_utils.byte_bounds",
    "add_docstring": "lib.add_docstring",
    "add_newdoc": "lib.add_newdoc",
    "tracemalloc_domain": "lib.tracemalloc_domain",
    "DataSource": "lib.npyio.DataSource",
    "chararray": "char.chararray",
    "compare_chararrays": "char.compare_chararrays",
    "format_parser": "rec.format_parser",
    "AxisError": "exceptions.AxisError",
    "ComplexWarning": "exceptions.ComplexWarning",
    "ModuleDeprecationWarning": "exceptions.ModuleDeprecationWarning",
    "RankWarning": "exceptions.RankWarning",
    "TooHardError": "exceptions.TooHardError",
    "VisibleDeprecationWarning": "exceptions.VisibleDeprecationWarning",
}

_CONSTANTS = {
    "NINF": -numpy.inf,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "ALLOW_THREADS": 1,
    "BUFSIZE": 8192,
    "CLIP": 0,
    "WRAP": 1,
    "RAISE": 2,
    "ERR_IGNORE": 0,
    "ERR_WARN": 1,
    "ERR_RAISE": 2,
    "ERR_CALL": 3,
    "ERR_PRINT": 4,
    "ERR_LOG": 5,
    "ERR_DEFAULT": 521,
    "FLOATING_POINT_SUPPORT": 1,
    "FPE_DIVIDEBYZERO": 1,
    "FPE_OVERFLOW": 2,
    "FPE_UNDERFLOW": 4,
    "FPE_INVALID": 8,
    "SHIFT_DIVIDEBYZERO": 0,
    "SHIFT_OVERFLOW": 3,
    "SHIFT_UNDERFLOW": 6,
    "SHIFT_INVALID": 9,
    "MAXDIMS": 32,
    "MAY_SHARE_BOUNDS": 0,
    "MAY_SHARE_EXACT": -1,
    "UFUNC_BUFSIZE_DEFAULT": 8192,
    "UFUNC_PYVALS_NAME": "UFUNC_PYVALS",
    "numarray": "removed",
    "oldnumeric": "removed",
    "kernel_version": tuple(
        int(part) for part in platform.release().split(".")[:2] if part.isdigit()
    ),
}

# Functions that were also in numpy.lib, up to NumPy 1.26.
_ALSO_IN_LIB = """
    add_newdoc_ufunc angle append apply_along_axis apply_over_axes array_split
    asarray_chkfinite asfarray average bartlett bincount blackman broadcast_arrays
    broadcast_shapes broadcast_to byte_bounds c_ column_stack common_type copy
    corrcoef cov DataSource delete deprecate deprecate_with_doc diag diag_indices
    diag_indices_from diagflat diff digitize disp dsplit dstack ediff1d emath
    expand_dims extract eye fill_diagonal fix flip fliplr flipud fromregex
    genfromtxt get_array_wrap get_include gradient hamming hanning histogram
    histogram2d histogram_bin_edges histogramdd hsplit i0 imag in1d index_exp info
    insert interp intersect1d iscomplex iscomplexobj isin isneginf isposinf isreal
    isrealobj issubclass_ issubdtype issubsctype iterable ix_ kaiser kron load
    loadtxt lookfor mask_indices median meshgrid mgrid mintypecode msort nan_to_num
    nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin
    nanpercentile nanprod nanquantile nanstd nansum nanvar ndenumerate ndindex ogrid
    packbits pad percentile piecewise place poly poly1d polyadd polyder polydiv
    polyfit polyint polymul polysub polyval put_along_axis quantile r_ RankWarning
    ravel_multi_index real real_if_close recfromcsv recfromtxt roots rot90 row_stack
    s_ safe_eval save savetxt savez savez_compressed select setdiff1d setxor1d
    show_runtime sinc sort_complex source split take_along_axis tile trapz tri tril
    tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from
    typename union1d unique unpackbits unravel_index unwrap vander vectorize vsplit
    who
"""

# Removed modules, with the present modules that have their contents.
_MODULES = {
    "compat": _numpy_compat,
    "compat.py3k": _numpy_compat,
    "dual": _numpy_dual,
    "fft.helper": numpy.fft,
    "linalg.linalg": numpy.linalg,
    "testing.utils": numpy.testing,
}
# Modules that NumPy 2 renamed, such as to numpy.lib._arraypad_impl.
_IN_LIB = """
    arraypad arraysetops function_base histograms index_tricks nanfunctions polynomial
    shape_base twodim_base type_check ufunclike utils
"""
_MODULES.update((f"lib.{name}", _find(f"lib._{name}_impl")) for name in _IN_LIB.split())

# Strings that numpy.dtype() accepted.
_DTYPE_STRINGS = ("bool8", "bytes0", "int0", "object0", "str0", "uint0", "void0")


def catalogue() -> dict[str, Any]:
    """Returns the object that each removed name stands for.

    A name is left out if this NumPy lacks its new name, because it then has the old
    one.
    """
    names = {**_PYTHON, **_CONSTANTS}
    for module in (_numpy_types, _numpy_functions):
        names.update((name, getattr(module, name)) for name in module.__all__)
    names.update((old, _find(new)) for old, new in _RENAMED.items())
    for name in _ALSO_IN_LIB.split():
        names[f"lib.{name}"] = names.get(name) or _find(name)
    names.update(_MODULES)
    return {name: value for name, value in names.items() if value is not None}


def modules() -> Mapping[str, Any]:
    """Returns the removed modules by their names, without ``numpy.``."""
    return _MODULES


def enable() -> list[str]:
    """Adds the names that this NumPy lacks; returns them.

    Names that NumPy has are not changed, such as ``bool`` and ``long``, which are
    scalar types in NumPy 2. The exception is ``fromstring``: if it refuses to read
    binary data, it is replaced by one that reads them.
    """
    added = []
    for path, value in catalogue().items():
        if _has(path):
            continue
        parent, _, name = path.rpartition(".")
        setattr(_find(parent) if parent else numpy, name, value)
        if path in _MODULES:
            sys.modules[f"numpy.{path}"] = value
        added.append(path)
    return added + enable_quiet_parts()


def enable_quiet_parts() -> list[str]:
    """Adds what no name of NumPy shows: texts for dtypes, and ``fromstring``.

    Returns:
        list: ``["fromstring"]`` if that was replaced.
    """
    for name in _DTYPE_STRINGS:
        numpy.sctypeDict.setdefault(name, _find(_RENAMED[name]))
    if _reads_binary(numpy.fromstring):
        return []
    numpy.fromstring = _numpy_functions.fromstring_with_binary_mode(numpy.fromstring)
    return ["fromstring"]


def _has(path):
    if _find(path) is not None:
        return True
    if path not in _MODULES:
        return False
    # The module may exist without being imported so far.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.util.find_spec(f"numpy.{path}") is not None
        except ModuleNotFoundError:
            return False


def _reads_binary(fromstring):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fromstring(b"\0", "u1")
        except ValueError:
            return False
    return True
