"""Functions on types that NumPy 1 had and NumPy 2 dropped.

Each name follows the documentation of NumPy 1.22. NumPy's licence, the three-clause BSD
licence, covers the rules of ``find_common_type``.
"""

from __future__ import annotations

import numpy

__all__ = [
    "cast",
    "find_common_type",
    "issctype",
    "issubclass_",
    "issubsctype",
    "maximum_sctype",
    "nbytes",
    "obj2sctype",
    "sctype2char",
    "sctypes",
]

sctypes = {
    "int": [numpy.int8, numpy.int16, numpy.int32, numpy.int64],
    "uint": [numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64],
    "float": [numpy.float16, numpy.float32, numpy.float64, numpy.longdouble],
    "complex": [numpy.complex64, numpy.complex128, numpy.clongdouble],
    "others": [bool, object, bytes, str, numpy.void],
}

_SCALAR_TYPES = {numpy.dtype(char).type for char in numpy.typecodes["All"]}
_KIND_NAMES = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
# A scalar type widens arrays only if its kind comes later.
_KINDS = ["b", "u", "i", "f", "c", "S", "U", "V", "O", "M", "m"]
# The types among which a common type is searched, in this order.
_CANDIDATES = "?bBhHiIlLqQefdgFDGO"


def obj2sctype(rep, default=None):
    """Returns the scalar type of a dtype, an array or a Python type."""
    if isinstance(rep, type) and issubclass(rep, numpy.generic):
        return rep
    if isinstance(rep, numpy.ndarray):
        return rep.dtype.type
    try:
        return numpy.dtype(rep).type
    except Exception:
        # NumPy searches a dtype in the object's attributes, which may raise anything.
        return default


def sctype2char(sctype) -> str:
    """Returns the character of a scalar type, such as ``'d'``."""
    found = obj2sctype(sctype)
    if found is None:
        raise ValueError("unrecognized type")
    if found not in _SCALAR_TYPES:
        raise KeyError(found)
    return numpy.dtype(found).char


def maximum_sctype(t):
    """Returns the widest scalar type of the same kind."""
    found = obj2sctype(t)
    if found is None:
        return t
    kind = _KIND_NAMES.get(numpy.dtype(found).kind)
    return sctypes[kind][-1] if kind else found


def issctype(rep) -> bool:
    """Returns whether an object is a scalar type or dtype, other than object."""
    if not isinstance(rep, (type, numpy.dtype)):
        return False
    return obj2sctype(rep) not in (None, numpy.object_)


def issubclass_(arg1, arg2) -> bool:
    """Returns the result of ``issubclass``, and False for a non-class."""
    try:
        return issubclass(arg1, arg2)
    except TypeError:
        return False


def issubsctype(arg1, arg2) -> bool:
    """Returns whether the scalar type of one is a subclass of that of the other."""
    return issubclass(obj2sctype(arg1), obj2sctype(arg2))


def find_common_type(array_types, scalar_types):
    """Returns the dtype that arrays and scalars of these types had in common.

    Scalars counted only if they were of a later kind, such as complex among floats.
    """
    arrays = _holding_all([numpy.dtype(t) for t in array_types])
    scalars = _holding_all([numpy.dtype(t) for t in scalar_types])
    if arrays is None or scalars is None:
        return scalars if arrays is None else arrays
    if not {arrays.kind, scalars.kind} <= set(_KINDS):
        return None
    if _KINDS.index(scalars.kind) <= _KINDS.index(arrays.kind):
        return arrays
    if scalars > arrays:
        return scalars
    if scalars.char not in _CANDIDATES:
        return None
    start = _CANDIDATES.index(scalars.char)
    return _holding_all([scalars, arrays], _CANDIDATES[start:])


def _holding_all(dtypes, candidates=_CANDIDATES):
    """Returns the first candidate to which all can be cast safely, or None."""
    if len(dtypes) < 2:
        return dtypes[0] if dtypes else None
    for candidate in map(numpy.dtype, candidates):
        if all(candidate >= dtype for dtype in dtypes):
            return candidate
    return None


class _ByType(dict):
    """A dictionary that finds a scalar type by any object that stands for it."""

    def __getitem__(self, key):
        return super().__getitem__(obj2sctype(key))


def _caster(scalar_type):
    return lambda x: numpy.asarray(x).astype(scalar_type)


nbytes = _ByType((t, numpy.dtype(t).itemsize) for t in _SCALAR_TYPES)
cast = _ByType((t, _caster(t)) for t in _SCALAR_TYPES)
