"""Names that NumPy removed in 1.24 and 2.0, for scripts that still use them."""

import numpy

# Removed in 1.24: mere other names of Python's types.
_PYTHON_TYPES = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "long": int,
    "unicode": str,
}

# Removed in 2.0, with the name that remains.
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
    "Inf": "inf",
    "Infinity": "inf",
    "infty": "inf",
    "PINF": "inf",
    "NaN": "nan",
    "product": "prod",
    "cumproduct": "cumprod",
    "alltrue": "all",
    "sometrue": "any",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "mat": "asmatrix",
}


def enable() -> list:
    """Adds the names that this NumPy lacks; returns them.

    NumPy 2 has ``bool`` and ``long`` again, as its own scalar types. Those stay.
    """
    candidates = {
        **_PYTHON_TYPES,
        "sctypes": _sctypes(),
        "NINF": -numpy.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "asfarray": _asfarray,
        "msort": _msort,
        "in1d": _in1d,
    }
    candidates.update((old, getattr(numpy, new, None)) for old, new in _RENAMED.items())
    added = []
    for name, value in candidates.items():
        if value is not None and not _has(name):
            setattr(numpy, name, value)
            added.append(name)
    return added


def _has(name):
    """Looks past numpy.__getattr__, which warns of, or refuses, removed names."""
    return name in vars(numpy) or name in getattr(numpy, "__deprecated_attrs__", ())


def _asfarray(a, dtype=numpy.float64):
    """Returns an array of floating-point numbers, of float64 for other types."""
    is_inexact = numpy.issubdtype(dtype, numpy.inexact)
    return numpy.asarray(a, dtype if is_inexact else numpy.float64)


def _msort(a):
    """Returns an array sorted along its first axis."""
    return numpy.sort(a, axis=0)


def _in1d(ar1, ar2, assume_unique=False, invert=False, **options):
    """Returns whether elements of one array are in another, along one axis."""
    ar1 = numpy.ravel(ar1)
    return numpy.isin(ar1, ar2, assume_unique, invert, **options)


def _sctypes():
    kinds = {
        "int": "int8 int16 int32 int64",
        "uint": "uint8 uint16 uint32 uint64",
        "float": "float16 float32 float64 longdouble",
        "complex": "complex64 complex128 clongdouble",
        "others": "bool_ object_ bytes_ str_ void",
    }
    return {
        kind: [getattr(numpy, name) for name in names.split()]
        for kind, names in kinds.items()
    }
