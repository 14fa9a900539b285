"""Names that NumPy removed: each does what NumPy 1.22 documents of it.

Where the installed NumPy still has a name, its own is held to the same values.
"""

import inspect
import io
import math
import operator
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from chainer_compat import _numpy_aliases, _numpy_functions

CATALOGUE = _numpy_aliases.catalogue()


def call(function, value):
    """Calls it with the warnings ignored that old NumPys give of their own names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(value)


def each(name):
    """Returns what the catalogue has under a name, and what NumPy has."""
    found = [CATALOGUE.get(name), _numpy_aliases._find(name)]
    return [value for value in found if value is not None]


EXCEPTIONS = getattr(np, "exceptions", np)
MOVED_EXCEPTIONS = (
    *("AxisError", "ComplexWarning", "ModuleDeprecationWarning", "RankWarning"),
    *("TooHardError", "VisibleDeprecationWarning"),
)

STANDS_FOR = {
    **{"bool8": np.bool_, "bytes0": np.bytes_, "object0": np.object_, "str0": np.str_},
    **{"int0": np.intp, "uint0": np.uintp, "void0": np.void},
    **{"float_": np.float64, "complex_": np.complex128, "cfloat": np.complex128},
    **{"singlecomplex": np.complex64, "longfloat": np.longdouble},
    **{"longcomplex": np.clongdouble, "clongfloat": np.clongdouble},
    **{"string_": np.bytes_, "unicode_": np.str_, "typeDict": np.sctypeDict},
    **dict.fromkeys(["Inf", "Infinity", "infty", "PINF"], math.inf),
    **{"NINF": -math.inf, "PZERO": 0.0, "NZERO": 0.0},
    **{"product": np.prod, "cumproduct": np.cumprod, "round_": np.round},
    **{"alltrue": np.all, "sometrue": np.any, "rank": np.ndim, "mat": np.asmatrix},
    **{"row_stack": np.vstack, "trapz": getattr(np, "trapezoid", None)},
    **{"format_parser": np.rec.format_parser},
    **{"compare_chararrays": np.char.compare_chararrays},
    **{name: getattr(EXCEPTIONS, name, None) for name in MOVED_EXCEPTIONS},
    **{"math": math, "warnings": warnings, "sys": sys},
    **{"long": int, "unicode": str, "bool": bool, "int": int, "float": float},
    **{"complex": complex, "object": object, "str": str},
    **{"ERR_DEFAULT": 521, "MAXDIMS": 32, "BUFSIZE": 8192, "SHIFT_INVALID": 9},
    **{"CLIP": 0, "WRAP": 1, "RAISE": 2, "ERR_LOG": 5, "FPE_INVALID": 8},
    **{"numarray": "removed", "oldnumeric": "removed"},
    **{"lib.pad": np.pad, "lib.ndindex": np.ndindex, "lib.r_": np.r_},
    **{"linalg.linalg.svd": np.linalg.svd, "fft.helper.fftfreq": np.fft.fftfreq},
    **{"testing.utils.assert_equal": np.testing.assert_equal},
    **{"lib.function_base.percentile": np.percentile, "dual.svd": np.linalg.svd},
}


@pytest.mark.parametrize("name", STANDS_FOR)
def test_stands_for(name):
    known = max((n for n in CATALOGUE if f"{name}.".startswith(f"{n}.")), default="")
    if not known:
        pytest.skip("this NumPy has the old name only")
    value, rest = CATALOGUE[known], name[len(known) + 1 :]
    assert (operator.attrgetter(rest)(value) if rest else value) == STANDS_FOR[name]


def test_nan_and_negative_zero():
    for name in ("NaN", "NAN"):
        assert all(math.isnan(value) for value in each(name))
    assert all(math.copysign(1, zero) == -1 for zero in each("NZERO"))


def test_constants_are_those_of_numpy():
    for name, value in _numpy_aliases._CONSTANTS.items():
        assert each(name) == [value] * len(each(name))


A = np.arange(4)
F32 = np.dtype("float32")
DOES = [
    ("asscalar", lambda f: f(np.array([24])), 24),
    ("alen", lambda f: (f(np.zeros((7, 4))), f(3)), (7, 1)),
    ("asfarray", lambda f: f([2, 3]), np.array([2.0, 3.0])),
    ("asfarray", lambda f: f([2, 3], "f"), np.array([2, 3], "f")),
    ("asfarray", lambda f: f([2, 3], "int8"), np.array([2.0, 3.0])),
    ("msort", lambda f: f([[3, 1], [1, 2]]), np.array([[1, 1], [3, 2]])),
    ("in1d", lambda f: f([[1, 2], [3, 4]], [1, 4]), np.array([1, 0, 0, 1], bool)),
    ("in1d", lambda f: f([1, 2], [1], invert=True), np.array([False, True])),
    ("fastCopyAndTranspose", lambda f: f(np.eye(3)[:2]), np.eye(3)[:2].T),
    ("loads", lambda f: f(b"I5\n."), 5),
    ("mat", lambda f: f("1 2; 3 4") * f("1; 1"), np.array([[3], [7]])),
    ("row_stack", lambda f: f(([1, 2], [3, 4])), np.array([[1, 2], [3, 4]])),
    ("trapz", lambda f: f([1, 2, 3]), 4.0),
    ("product", lambda f: f([1.0, 2.0]), 2.0),
    ("cumproduct", lambda f: f([1, 2, 3]), np.array([1, 2, 6])),
    ("round_", lambda f: f(1.25, 1), 1.2),
    ("chararray", lambda f: f is np.char.chararray, True),
    ("byte_bounds", lambda f: f(A)[1] - f(A)[0], A.nbytes),
    ("safe_eval", lambda f: f("[1, 2, 3]"), [1, 2, 3]),
    ("obj2sctype", lambda f: f(np.int32), np.int32),
    ("obj2sctype", lambda f: f(np.array([1.0j])), np.complex128),
    ("obj2sctype", lambda f: f(dict), np.object_),
    ("obj2sctype", lambda f: f("string"), None),
    ("obj2sctype", lambda f: f(1, default=list), list),
    ("sctype2char", lambda f: [f(t) for t in ("i4", float, "S3", A)], list("idSl")),
    ("maximum_sctype", lambda f: f(int), np.int64),
    ("maximum_sctype", lambda f: f(np.uint8), np.uint64),
    ("maximum_sctype", lambda f: f("f4"), np.longdouble),
    ("maximum_sctype", lambda f: f(complex), np.clongdouble),
    ("maximum_sctype", lambda f: f(str), np.str_),
    ("maximum_sctype", lambda f: f("no type"), "no type"),
    ("issctype", lambda f: [f(np.int32), f(list), f(1.1)], [True, False, False]),
    ("issctype", lambda f: f(np.dtype("str")), True),
    ("issubclass_", lambda f: [f(np.float64, float), f(1, int)], [True, False]),
    ("issubsctype", lambda f: [f("S8", str), f(A, int), f(A, float)], [False, True, 0]),
    ("find_common_type", lambda f: f([], [np.int64, F32, complex]), np.dtype("D")),
    ("find_common_type", lambda f: f([np.int64, F32], []), np.dtype("d")),
    ("find_common_type", lambda f: f([F32], [np.int64, np.float64]), F32),
    ("find_common_type", lambda f: f([F32], [complex]), np.dtype("D")),
    ("find_common_type", lambda f: f(["f4", "f4", "i4"], ["c8"]), np.dtype("D")),
    ("find_common_type", lambda f: f(["u1", "i1"], []), np.dtype("h")),
    ("find_common_type", lambda f: f([], []), None),
    ("cast", lambda f: f["f"]([1, 2]), np.array([1, 2], "f")),
    ("cast", lambda f: f[int](1.5), np.array(1)),
    ("nbytes", lambda f: [f["f8"], f[np.int16], f[str]], [8, 2, 0]),
    ("sctypes", lambda f: f["int"], [np.int8, np.int16, np.int32, np.int64]),
    ("sctypes", lambda f: f["others"], [bool, object, bytes, str, np.void]),
    ("get_array_wrap", lambda f: f(3), None),
    ("get_array_wrap", lambda f: f(A, np.asmatrix(A)).__self__.shape, (1, 4)),
    ("geterrobj", lambda f: f()[0], 8192),
    ("set_numeric_ops", lambda f: f()["add"], np.add),
    ("MachAr", lambda f: f().eps, 2.0**-52),
    ("MachAr", lambda f: (f().it, f().maxexp, f().xmin), (52, 1024, 2.0**-1022)),
    ("compat", lambda f: f.asbytes("a"), b"a"),
    ("compat", lambda f: f.asunicode_nested([b"a", "b"]), ["a", "b"]),
    ("compat", lambda f: (f.long, f.basestring), (int, str)),
    ("ndfromtxt", lambda f: f(["1,2"], delimiter=","), np.array([1.0, 2.0])),
    ("mafromtxt", lambda f: f(["1,"], delimiter=",").mask, np.array([False, True])),
    ("recfromtxt", lambda f: f(["a 1"], encoding="utf8").f1, np.array(1)),
    ("recfromcsv", lambda f: f(["A,B", "1,2"], encoding="utf8").b, np.array(2)),
]


@pytest.mark.parametrize(
    "name, use, expected", DOES, ids=[f"{i}-{row[0]}" for i, row in enumerate(DOES)]
)
def test_does(name, use, expected):
    for function in each(name):
        value = call(use, function)
        np.testing.assert_array_equal(value, expected)
        if isinstance(expected, (np.ndarray, np.dtype, type, int, float)):
            assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)


@pytest.mark.parametrize("name", ["sctype2char"])
def test_refuses_what_is_no_type(name):
    for function in each(name):
        with pytest.raises(ValueError, match="unrecognized type"):
            function("no type")


def test_error_object_is_set_and_read():
    before = np.geterr()
    try:
        _numpy_functions.seterrobj([16384, 2 << 9 | 4, None])
        assert np.geterr() == {
            **{"divide": "print", "over": "ignore"},
            **{"under": "ignore", "invalid": "raise"},
        }
        assert _numpy_functions.geterrobj() == [16384, 2 << 9 | 4, None]
    finally:
        np.setbufsize(8192)
        np.seterr(**before)


def test_printing(capsys):
    arrays = {"x": np.arange(2.0), "y": np.arange(3.0), "txt": "Some str", "idx": 5}
    arrays["z"] = arrays["x"]
    outputs = []
    for who in each("who"):
        call(who, arrays)
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1
    lines = [line.split() for line in outputs[0].splitlines()]
    assert lines[0] == ["Name", "Shape", "Bytes", "Type"]
    assert ["y", "3", "24", "float64"] in lines
    assert ["z", "(x)", "2", "16", "float64"] in lines
    assert outputs[0].endswith("Upper bound on total bytes  =       40\n")


def test_messages_to_a_device():
    for disp in each("disp"):
        file = io.StringIO()
        call(lambda f, file=file: [f("a", file), f("b", file, False)], disp)
        assert file.getvalue() == "a\nb"


def test_source_and_search():
    for source in each("source"):
        for what, start in (textwrap.dedent, "In file: "), (1, "Not available for"):
            file = io.StringIO()
            call(lambda f, what=what, file=file: f(what, file), source)
            assert file.getvalue().startswith(start)
    file = io.StringIO()
    _numpy_functions.lookfor("binary representation", output=file)
    assert "numpy.binary_repr\n    Return the binary repr" in file.getvalue()
    _numpy_functions.lookfor("no such words anywhere", "numpy.fft", output=file)
    assert file.getvalue().endswith("Nothing found.\n")


def test_deprecated_functions_warn_and_work():
    for deprecate, with_doc in zip(each("deprecate"), each("deprecate_with_doc")):
        old = call(lambda f: f(math.sqrt, "root", "sqrt"), deprecate)
        with pytest.warns(DeprecationWarning, match="`root` is deprecated, use `sqrt`"):
            assert old(4) == 2
        assert (old.__name__, "square root" in old.__doc__) == ("root", True)

        def double(x):
            return 2 * x

        for decorator in (
            call(lambda f: f(message="Too slow."), deprecate),
            call(lambda f: f("Too slow."), with_doc),
        ):
            with pytest.warns(DeprecationWarning, match="`double` is dep.*\nToo slow"):
                assert decorator(double)(2) == 4


def test_documentation_of_ufuncs():
    if np.lib.NumpyVersion(np.__version__) < "2.2.0":
        pytest.skip("such ufuncs as can be made here have documentation for ever")
    ufunc = np.frompyfunc(abs, 1, 1)
    _numpy_functions.add_newdoc_ufunc(ufunc, "Distance from zero.")
    assert "Distance from zero." in ufunc.__doc__


def test_arrays_are_printed_by_a_function():
    # NumPy's own, or else ours, which stands on NumPy 2.
    set_string_function = each("set_string_function")[-1]
    call(lambda f: f(lambda array: "HA!"), set_string_function)
    try:
        assert repr(np.arange(2)) == "HA!"
    finally:
        call(lambda f: f(None), set_string_function)
    assert repr(np.arange(2)) == "array([0, 1])"


def test_what_numpy_lets_nobody_replace_is_refused():
    with pytest.raises(NotImplementedError, match="__array_ufunc__"):
        _numpy_functions.set_numeric_ops(add=np.subtract)
    if "override_repr" in inspect.signature(np.set_printoptions).parameters:
        with pytest.raises(NotImplementedError, match="str"):
            _numpy_functions.set_string_function(str, repr=False)


def test_binary_strings():
    both = _numpy_functions.fromstring_with_binary_mode(np.fromstring)
    for fromstring in [both] + [np.fromstring] * _numpy_aliases._reads_binary(
        np.fromstring
    ):
        for use, expected in [
            (lambda f: f(b"\1\2", dtype=np.uint8), np.array([1, 2], "u1")),
            (lambda f: f("\1\2", np.uint8), np.array([1, 2], "u1")),
            (lambda f: f(b"\1\0\2\0\3\0", "<i2", 2), np.array([1, 2], "<i2")),
            (lambda f: f(b"\1\0\0\0\0\0\0\0", int), np.array([1])),
            (lambda f: f("1 2", dtype=int, sep=" "), np.array([1, 2])),
            (lambda f: f("1, 2, 3", sep=",", count=2), np.array([1.0, 2.0])),
        ]:
            value = call(use, fromstring)
            assert (value.dtype, value.flags.writeable) == (expected.dtype, True)
            np.testing.assert_array_equal(value, expected)
        with pytest.raises(ValueError, match="must be a multiple of element size"):
            call(lambda f: f(b"\1", float), fromstring)


ENABLE = """
import sys, warnings
import numpy as np
before, lib = dict(vars(np)), dict(vars(np.lib))
binary_mode = True
try:
    np.fromstring(b"1", "u1")
except ValueError:
    binary_mode = False
import chainer, chainer_compat
assert [name for name in ("float", "NINF") if name in vars(np)] == [
    name for name in ("float", "NINF") if name in before
]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    added = chainer_compat.enable_numpy_aliases()
    assert chainer_compat.enable_numpy_aliases() == []
overridden = [k for k in before if vars(np)[k] is not before[k]]
assert overridden == ([] if binary_mode else ["fromstring"]), overridden
assert [k for k in lib if vars(np.lib)[k] is not lib[k]] == []
assert not set(added) & set(before) - {"fromstring"}
try:
    from numpy._expired_attrs_2_0 import __expired_attributes__ as expired
except ImportError:
    expired = {}
assert [k for k in expired if k not in vars(np)] == []
assert np.float is float and np.zeros(2, np.int).dtype == "int64"
assert np.float_ is np.float64 and np.NINF < 0 and np.asscalar(np.ones(1)) == 1
assert np.dtype("int0") == np.intp and np.fromstring(b"\\1", "u1") == [1]
assert np.lib.pad([1], 1, mode="edge").tolist() == [1, 1, 1]
warnings.simplefilter("ignore")
import numpy.linalg.linalg, numpy.lib.function_base, numpy.compat.py3k
from numpy.fft.helper import fftfreq
from numpy.compat import asbytes
from numpy.dual import svd
assert type(np.bool(1)) is (np.bool_ if np.__version__ >= "2" else bool)
"""


@pytest.mark.slow
def test_enabling_adds_and_overrides_nothing():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENABLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
