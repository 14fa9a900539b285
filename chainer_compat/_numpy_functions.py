"""Functions that NumPy dropped, as its documentation described them.

Most of them are a line of today's NumPy or Python. They follow the documentation of
NumPy 1.22.
"""

from __future__ import annotations

import ast
import functools
import inspect
import pickle
import sys
import types
import warnings

import numpy

__all__ = [
    "MachAr",
    "add_newdoc_ufunc",
    "alen",
    "asfarray",
    "asscalar",
    "deprecate",
    "deprecate_with_doc",
    "disp",
    "fastCopyAndTranspose",
    "get_array_wrap",
    "geterrobj",
    "in1d",
    "loads",
    "lookfor",
    "mafromtxt",
    "msort",
    "ndfromtxt",
    "recfromcsv",
    "recfromtxt",
    "safe_eval",
    "set_numeric_ops",
    "set_string_function",
    "seterrobj",
    "source",
    "who",
]

loads = pickle.loads
safe_eval = ast.literal_eval


def alen(a) -> int:
    """Returns the length of the first axis, 1 for a scalar."""
    return len(numpy.atleast_1d(a))


def asscalar(a):
    """Returns the only element of an array as a Python number."""
    return numpy.asarray(a).item()


def asfarray(a, dtype=numpy.float64):
    """Returns an array of floating-point numbers, of float64 for other types."""
    is_inexact = numpy.issubdtype(dtype, numpy.inexact)
    return numpy.asarray(a, dtype if is_inexact else numpy.float64)


def msort(a):
    """Returns an array sorted along its first axis."""
    return numpy.sort(a, axis=0)


def in1d(ar1, ar2, assume_unique=False, invert=False, **options):
    """Returns whether elements of one array are in another, along one axis."""
    return numpy.isin(numpy.ravel(ar1), ar2, assume_unique, invert, **options)


def fastCopyAndTranspose(a):
    """Returns a transposed copy."""
    return numpy.asarray(a).T.copy()


def fromstring_with_binary_mode(text_mode):
    """Wraps a ``numpy.fromstring`` that reads text only.

    Without ``sep`` the string is the memory of an array, which is copied.
    """

    @functools.wraps(text_mode)
    def fromstring(string, dtype=float, count=-1, sep="", **options):
        if sep:
            return text_mode(string, dtype, count, sep=sep, **options)
        memory = string.encode() if isinstance(string, str) else string
        return numpy.frombuffer(memory, dtype, count, **options).copy()

    return fromstring


def ndfromtxt(fname, **options):
    """Reads a text file with ``genfromtxt``, without a mask."""
    return numpy.genfromtxt(fname, **{**options, "usemask": False})


def mafromtxt(fname, **options):
    """Reads a text file with ``genfromtxt``; missing values are masked."""
    return numpy.genfromtxt(fname, **{**options, "usemask": True})


def recfromtxt(fname, **options):
    """Reads a text file into a record array, with types found from the values."""
    options.setdefault("dtype", None)
    output = numpy.genfromtxt(fname, **options)
    if options.get("usemask"):
        from numpy.ma.mrecords import MaskedRecords

        return output.view(MaskedRecords)
    return output.view(numpy.recarray)


def recfromcsv(fname, **options):
    """Reads a file of comma-separated values, whose first line holds names."""
    as_csv = {"case_sensitive": "lower", "names": True, "delimiter": ","}
    return recfromtxt(fname, **{**as_csv, **options})


def disp(mesg, device=None, linefeed=True) -> None:
    """Writes a message to standard output or to a device."""
    device = sys.stdout if device is None else device
    device.write(f"{mesg}\n" if linefeed else f"{mesg}")
    device.flush()


def source(object, output=None) -> None:
    """Prints the source of a Python object, and where it is from."""
    try:
        text = (
            f"In file: {inspect.getsourcefile(object)}\n\n{inspect.getsource(object)}"
        )
    except (TypeError, OSError):
        text = "Not available for this object."
    print(text, file=output or sys.stdout)


def who(vardict=None) -> None:
    """Prints the arrays of a dictionary, or of the caller's global names."""
    if vardict is None:
        vardict = sys._getframe(1).f_globals
    first_names, rows, total = {}, [], 0
    for name, value in vardict.items():
        if not isinstance(value, numpy.ndarray):
            continue
        if id(value) in first_names:
            name = f"{name} ({first_names[id(value)]})"
        else:
            first_names[id(value)] = name
            total += value.nbytes
        shape = " x ".join(map(str, value.shape))
        rows.append((name, shape, str(value.nbytes), value.dtype.name))
    if rows:
        widths = [max(10, *(len(row[i]) for row in rows)) for i in range(3)]
        title = "Name {} Shape {} Bytes {} Type".format(*(" " * w for w in widths))
        print(f"{title}\n{'=' * (len(title) + 5)}\n")
        for row in rows:
            columns = zip(row, widths, (6, 7, 7))
            print("".join(text.ljust(w + gap) for text, w, gap in columns) + row[3])
    print(f"\nUpper bound on total bytes  =       {total}")


def lookfor(
    what, module=None, import_modules=True, regenerate=False, output=None
) -> None:
    """Prints the functions and classes whose documentation has all given words.

    Args:
        what (str): The words.
        module (str, module or list): Modules to search; NumPy's namespaces by default.
        import_modules (bool): Ignored: only imported modules are searched.
        regenerate (bool): Ignored: no index is kept.
        output (file): File to print to, instead of standard output.
    """
    words = str(what).lower().split()
    if not words:
        return
    if module is None:
        module = ["numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.ma"]
    modules = module if isinstance(module, list) else [module]
    found = {}
    for each in modules:
        space = sys.modules[each] if isinstance(each, str) else each
        for name, value in vars(space).items():
            text = inspect.getdoc(value) if callable(value) else None
            if text and not name.startswith("_"):
                first, everything = text.split("\n")[0], f"{name} {text}".lower()
                if all(word in everything for word in words):
                    # Names count most, then the first line.
                    hits = sum(2 * (w in name) + (w in first.lower()) for w in words)
                    found[f"{space.__name__}.{name}"] = (-hits, first)
    title = f"Search results for '{' '.join(words)}'"
    lines = [title, "-" * len(title)]
    for name in sorted(found, key=lambda name: (found[name][0], name)):
        lines += [name, f"    {found[name][1]}"]
    if not found:
        lines.append("Nothing found.")
    print("\n".join(lines), file=output or sys.stdout)


def deprecate(*arguments, **options):
    """Makes a function warn that it is deprecated: a function, or a decorator.

    Without the function a decorator is returned.

    Args:
        *arguments: The function, its old name, its new name, and a message.
        **options: ``old_name``, ``new_name`` and ``message``, by name.
    """
    if arguments:
        return _deprecated(*arguments, **options)
    return functools.partial(_deprecated, **options)


def _deprecated(function, old_name=None, new_name=None, message=None):
    old_name = function.__name__ if old_name is None else old_name
    text = f"`{old_name}` is deprecated"
    text += "!" if new_name is None else f", use `{new_name}` instead!"
    if message is not None:
        text += f"\n{message}"

    def warning(*arguments, **options):
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return function(*arguments, **options)

    documentation = inspect.getdoc(function)
    warning.__name__ = old_name
    warning.__doc__ = f"{text}\n\n{documentation}" if documentation else text
    warning.__dict__.update(getattr(function, "__dict__", {}))
    return warning


def deprecate_with_doc(msg):
    """Returns a decorator that makes functions warn with a message."""
    return deprecate(message=msg)


def add_newdoc_ufunc(ufunc, newdoc) -> None:
    """Gives a ufunc its documentation."""
    try:
        ufunc.__doc__ = newdoc
    except AttributeError:
        # Up to NumPy 2.1 no other function can set the documentation.
        numpy._core.umath._add_newdoc_ufunc(ufunc, newdoc)


def get_array_wrap(*args):
    """Returns ``__array_wrap__`` of the array of the highest priority, or None."""
    wrapping = [x for x in args if hasattr(x, "__array_wrap__")]
    if not wrapping:
        return None
    best = max(wrapping, key=lambda x: getattr(x, "__array_priority__", 0))
    return best.__array_wrap__


_MODES = ("ignore", "warn", "raise", "call", "print", "log")
# Positions of the bits of each kind of error.
_SHIFTS = {"divide": 0, "over": 3, "under": 6, "invalid": 9}


def geterrobj() -> list:
    """Returns the buffer size, the modes of errors as bits, and the callback."""
    modes = numpy.geterr()
    mask = sum(_MODES.index(modes[kind]) << shift for kind, shift in _SHIFTS.items())
    return [numpy.getbufsize(), mask, numpy.geterrcall()]


def seterrobj(errobj) -> None:
    """Sets what :func:`geterrobj` returns."""
    size, mask, callback = errobj
    numpy.setbufsize(size)
    numpy.seterr(**{kind: _MODES[mask >> shift & 7] for kind, shift in _SHIFTS.items()})
    numpy.seterrcall(callback)


def set_numeric_ops(**operators) -> dict:
    """Returns the ufuncs behind the operators of arrays; replaces none."""
    if operators:
        raise NotImplementedError(
            "NumPy 2 lets nobody replace the operators of arrays; give a subclass of"
            " ndarray an __array_ufunc__ instead"
        )
    names = (
        "absolute add bitwise_and bitwise_or bitwise_xor ceil clip conjugate divide"
        " divmod equal floor floor_divide greater greater_equal invert left_shift less"
        " less_equal logical_and logical_or matmul maximum minimum multiply negative"
        " not_equal positive power reciprocal remainder right_shift rint sqrt square"
        " subtract true_divide"
    )
    return {name: getattr(numpy, name) for name in names.split()}


def set_string_function(f, repr=True) -> None:
    """Sets the function that prints arrays as ``repr`` does; ``None`` resets it."""
    arrayprint = numpy._core.arrayprint
    if hasattr(arrayprint, "set_string_function"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            arrayprint.set_string_function(f, repr)
    elif repr:
        numpy.set_printoptions(override_repr=f)
    elif f is not None:
        raise NotImplementedError(
            "NumPy 2.1 lets nobody replace str() of arrays; repr() can be replaced,"
            " and set_printoptions(formatter=...) formats elements for both"
        )


def MachAr() -> types.SimpleNamespace:
    """Returns the parameters of Python's floating-point numbers."""
    info = numpy.finfo(float)
    return types.SimpleNamespace(
        ibeta=2,
        it=info.nmant,
        machep=info.machep,
        eps=float(info.eps),
        negep=info.negep,
        epsneg=float(info.epsneg),
        iexp=info.iexp,
        minexp=info.minexp,
        maxexp=info.maxexp,
        xmin=float(info.tiny),
        xmax=float(info.max),
        irnd=5,
        ngrd=0,
        epsilon=float(info.eps),
        tiny=float(info.tiny),
        huge=float(info.max),
        smallest_normal=float(info.tiny),
        smallest_subnormal=5e-324,
        precision=info.precision,
        resolution=float(info.resolution),
        title="Python floating point number",
    )
