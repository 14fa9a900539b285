"""oneDNN's C interface, by ctypes, as far as convolutions and products need it.

What oneDNN calls a primitive is machine code for one operation and one shape::

    Layout         of an array: its shape and strides, or "any", to be chosen
      -> Choice        an implementation, and the layouts that suit it
      -> Primitive     its code, to be called with arrays

The library is that of the wheel ``onednn-cpu-gomp``. The maintained wheel ``onednn`` is
far larger, because it has a compiler for GPUs. It finds a CPU only through a driver of
OpenCL. Its threads do not obey OMP_NUM_THREADS.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

PACKAGE = "onednn-cpu-gomp"
# Requirement of the package that small images of systems leave out.
_OPENMP = "GNU's OpenMP: the package libgomp1 of Debian, or libgomp of others"

#: Arguments of primitives. All numbers here are those of dnnl_types.h in oneDNN 3.
SRC, DST, WEIGHTS, BIAS = 1, 17, 33, 41
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
_SCRATCHPAD = 80
_QUERY_LAYOUT = {WEIGHTS: 131, DIFF_WEIGHTS: 132, _SCRATCHPAD: 136}
_QUERY_IMPLEMENTATION = 8
FORWARD_TRAINING, DIRECT = 64, 1
_CPU, _IN_ORDER, _ANY, _OF_THE_CALLER = 1, 1, 1, 1
_DTYPES = {"bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
_OUT_OF_MEMORY, _STATUS = 1, {2: "invalid arguments", 3: "not implemented"}
_MAJOR_VERSION, _AVX2 = 3, 0x7

#: One number for each of the axes that an array may have.
Dims = c_int64 * 12
_RESULT = ctypes.POINTER(c_void_p)

# Products of matrices in rows; the second one is exported, but in no header.
_GEMM = [
    *[c_char, c_char, c_int64, c_int64, c_int64],
    *[c_float, c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_int64],
]

# The functions that are called, and what each takes. Most return a status.
_FUNCTIONS = {
    "version": [],
    "get_effective_cpu_isa": [],
    "engine_create": [_RESULT, c_int, c_size_t],
    "stream_create": [_RESULT, c_void_p, c_int],
    "stream_destroy": [c_void_p],
    "stream_wait": [c_void_p],
    "primitive_attr_create": [_RESULT],
    "primitive_attr_set_scratchpad_mode": [c_void_p, c_int],
    "primitive_attr_set_post_ops": [c_void_p, c_void_p],
    "post_ops_create": [_RESULT],
    "post_ops_append_sum": [c_void_p, c_float, c_int, c_int],
    "memory_desc_create_with_strides": [_RESULT, c_int, Dims, c_int, Dims],
    "memory_desc_create_with_tag": [_RESULT, c_int, Dims, c_int, c_int],
    "memory_desc_clone": [_RESULT, c_void_p],
    "memory_desc_destroy": [c_void_p],
    "memory_desc_equal": [c_void_p] * 2,
    "memory_desc_get_size": [c_void_p],
    "memory_create": [_RESULT, *[c_void_p] * 3],
    "memory_destroy": [c_void_p],
    "memory_set_data_handle": [c_void_p] * 2,
    "convolution_forward_primitive_desc_create": (
        [_RESULT, c_void_p, c_int, c_int, *[c_void_p] * 4, *[Dims] * 4, c_void_p]
    ),
    "convolution_backward_data_primitive_desc_create": (
        [_RESULT, c_void_p, c_int, *[c_void_p] * 3, *[Dims] * 4, *[c_void_p] * 2]
    ),
    "convolution_backward_weights_primitive_desc_create": (
        [_RESULT, c_void_p, c_int, *[c_void_p] * 4, *[Dims] * 4, *[c_void_p] * 2]
    ),
    "matmul_primitive_desc_create": [_RESULT, *[c_void_p] * 6],
    "reorder_primitive_desc_create": [_RESULT, *[c_void_p] * 5],
    "primitive_desc_query": [c_void_p, c_int, c_int, c_void_p],
    "primitive_desc_query_md": [c_void_p, c_int, c_int],
    "primitive_desc_destroy": [c_void_p],
    "primitive_create": [_RESULT, c_void_p],
    "primitive_execute": [c_void_p, c_void_p, c_int, c_void_p],
    "primitive_destroy": [c_void_p],
    "sgemm": _GEMM,
    "gemm_bf16bf16f32": _GEMM,
}
_RETURNS = {
    "version": ctypes.POINTER(c_int * 3),
    "memory_desc_get_size": c_size_t,
    "primitive_desc_query_md": c_void_p,
}


class OneDNNError(Exception):
    """Something that oneDNN cannot do, here or at all."""


class NotInstalledError(OneDNNError):
    """The package is not there."""


class OldProcessorError(OneDNNError):
    """The processor has no instructions with which the library is fast."""


class Library:
    """The library, with its functions as attributes, and the engine of this CPU.

    Args:
        path: Path of ``libdnnl.so``.

    Raises:
        OldProcessorError: The processor has no AVX2.
        OneDNNError: The library cannot be loaded, or has another version.
    """

    def __init__(self, path: str) -> None:
        try:
            with _idle_threads_asleep():
                shared = ctypes.CDLL(path)
            for name, arguments in _FUNCTIONS.items():
                function = getattr(shared, f"dnnl_{name}")
                function.argtypes, function.restype = arguments, c_int
                function.restype = _RETURNS.get(name, c_int)
                setattr(self, name, function)
            set_threads = shared.omp_set_num_threads
        except (OSError, AttributeError) as error:
            cure = ""
            if "libgomp" in str(error):
                cure = f". Install {_OPENMP}"
            raise OneDNNError(f"cannot be loaded: {error}{cure}") from error
        version = list(self.version().contents)
        if version[0] != _MAJOR_VERSION:
            number = ".".join(map(str, version))
            raise OneDNNError(f"{number} in {path} is not {_MAJOR_VERSION}.x")
        if self.get_effective_cpu_isa() & _AVX2 != _AVX2:
            raise OldProcessorError("is slow on a processor without AVX2")
        self.version_number = ".".join(map(str, version))
        # The threads of a team are not in a process that was forked, and it would wait
        # for them; a team of one needs none.
        os.register_at_fork(after_in_child=lambda: set_threads(1))
        self.engine, post_ops = c_void_p(), c_void_p()
        self.check(self.engine_create(byref(self.engine), _CPU, 0))
        self.check(self.post_ops_create(byref(post_ops)))
        self.check(self.post_ops_append_sum(post_ops, 1, 0, 0))
        self.attributes = self._attributes()
        self.attributes_of_sums = self._attributes()
        self.check(self.primitive_attr_set_post_ops(self.attributes_of_sums, post_ops))

    def _attributes(self) -> c_void_p:
        made = c_void_p()
        self.check(self.primitive_attr_create(byref(made)))
        # Primitives that keep scratch memory themselves are not safe in two threads.
        self.check(self.primitive_attr_set_scratchpad_mode(made, _OF_THE_CALLER))
        return made

    @staticmethod
    def check(status: int) -> None:
        """Raises an error for a status that is not success.

        Raises:
            MemoryError: There is no memory left.
            OneDNNError: Anything else.
        """
        if status == _OUT_OF_MEMORY:
            raise MemoryError("oneDNN has no memory left")
        if status:
            raise OneDNNError(_STATUS.get(status, f"status {status}"))


@contextlib.contextmanager
def _idle_threads_asleep() -> Iterator[None]:
    """Makes OpenMP's threads sleep while they wait, if a block loads OpenMP.

    The loops between two convolutions need the cores.
    """
    names = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    if names & os.environ.keys():
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "0"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


@functools.cache
def library() -> Library:
    """Loads the library.

    Raises:
        NotInstalledError: The package is not installed.
        OneDNNError: The library cannot be used here.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise NotInstalledError(f"is not installed: pip install {PACKAGE}") from None
    for file in files:
        if file.name.startswith("libdnnl.so"):
            return Library(str(file.locate()))
    raise OneDNNError(f"cannot be loaded: the package {PACKAGE} has no libdnnl.so")


class _Object:
    """Something that the library made, and that is destroyed with this.

    Args:
        create: Name of the function that makes it.
        destroy: Name of the function that destroys it.
        arguments: Arguments of ``create``, behind the place for the result.
    """

    def __init__(self, create: str, destroy: str, *arguments: Any) -> None:
        self._as_parameter_ = c_void_p()
        call = getattr(library(), create)
        Library.check(call(byref(self._as_parameter_), *arguments))
        end = weakref.finalize(self, getattr(library(), destroy), self._as_parameter_)
        end.atexit = False


class Layout(_Object):
    """Shape, strides and dtype of an array.

    Args:
        shape: The shape.
        strides: In elements; without them the library is to choose.
        dtype: Its name, one of ``_DTYPES``.
    """

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        dtype: str = "float32",
    ) -> None:
        how = _ANY if strides is None else Dims(*strides)
        super().__init__(
            f"memory_desc_create_with_{'tag' if strides is None else 'strides'}",
            "memory_desc_destroy",
            *(len(shape), Dims(*shape), _DTYPES[dtype], how),
        )


class ChosenLayout(_Object):
    """The layout that an implementation wants of an argument.

    Two are equal if arrays in one may be read as arrays in the other.
    """

    def __init__(self, choice: AlgorithmChoice, argument: int) -> None:
        query = library().primitive_desc_query_md
        found = query(choice, _QUERY_LAYOUT[argument], 0)
        super().__init__("memory_desc_clone", "memory_desc_destroy", found)
        self.n_bytes = library().memory_desc_get_size(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChosenLayout) and bool(
            library().memory_desc_equal(self, other)
        )

    def __hash__(self) -> int:
        return hash(self.n_bytes)


class AlgorithmChoice(_Object):
    """An implementation that was chosen for an operation.

    Args:
        operation: The missing part in ``dnnl_..._primitive_desc_create``.
        arguments: Arguments of that function, without the attributes.
        is_added: Whether the result is added to what is there.
    """

    def __init__(self, operation: str, *arguments: Any, is_added: bool = False) -> None:
        create = f"{operation}_primitive_desc_create"
        dnnl = library()
        attributes = dnnl.attributes_of_sums if is_added else dnnl.attributes
        super().__init__(create, "primitive_desc_destroy", *arguments, attributes)

    def layout(self, argument: int) -> ChosenLayout:
        """Returns the layout that was chosen for an argument."""
        return ChosenLayout(self, argument)

    @property
    def name(self) -> str:
        """Its name, such as ``'brgconv:avx512_core'``."""
        name = c_char_p()
        query = library().primitive_desc_query
        Library.check(query(self, _QUERY_IMPLEMENTATION, 0, byref(name)))
        return (name.value or b"").decode()


class _Argument(ctypes.Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = [("argument", c_int), ("memory", c_void_p)]


class Primitive:
    """Code for an operation on arrays of certain layouts. It serves one thread.

    Args:
        choice: The implementation.
        layouts: Layouts of the arguments, in the order in which they are passed.
    """

    def __init__(self, choice: AlgorithmChoice, layouts: Mapping[int, Layout]) -> None:
        dnnl = library()
        self._code = _Object("primitive_create", "primitive_destroy", choice)
        self._stream = _Object(
            "stream_create", "stream_destroy", dnnl.engine, _IN_ORDER
        )
        scratch = choice.layout(_SCRATCHPAD)
        self._scratch_bytes = scratch.n_bytes
        layouts = {**layouts, _SCRATCHPAD: scratch}
        self._memories = [
            _Object("memory_create", "memory_destroy", layout, dnnl.engine, None)
            for layout in layouts.values()
        ]
        pairs = zip(layouts, self._memories)
        self._arguments = (_Argument * len(layouts))(
            *[_Argument(argument, m._as_parameter_) for argument, m in pairs]
        )

    def __call__(self, *arrays: np.ndarray) -> None:
        """Computes."""
        dnnl = library()
        scratch = empty(self._scratch_bytes)
        for memory, array in zip(self._memories, (*arrays, scratch)):
            address = array.__array_interface__["data"][0]
            dnnl.memory_set_data_handle(memory, address)
        n = len(self._memories)
        dnnl.check(dnnl.primitive_execute(self._code, self._stream, n, self._arguments))
        dnnl.check(dnnl.stream_wait(self._stream))


def empty(n_bytes: int) -> np.ndarray:
    """Returns bytes that begin where a line of the cache does."""
    whole = np.empty(n_bytes + 64, np.uint8)
    start = -whole.__array_interface__["data"][0] % 64
    return whole[start : start + n_bytes]
