"""Graphs of cuDNN, each made once for its shapes, by NVIDIA's ``cudnn`` package.

::

    Request     what is to be computed, of arrays of which shapes, and how
      -> find      its graph, with the engine that computes it; kept for the next time
      -> execute   over arrays of CuPy, on CuPy's current stream

Graphs and handles belong to one thread. A handle outlives its thread, for the next one
that begins.
"""

from __future__ import annotations

import collections
import functools
import importlib
import importlib.util
import math
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Callable, NamedTuple

import numpy as np

try:
    import cupy
# Without a library that it needs, it may raise anything.
except Exception:
    cupy = None

#: How many graphs a thread keeps.
_KEPT = 1024
#: The part of a GPU's memory that an engine may take for itself while it computes.
_WORKSPACE = 1 / 8
#: How many engines are tried to find the fastest, and how often each runs for that.
_N_TUNED, _N_RUNS = 8, 3
#: How many letters people are told of a reason.
_LONGEST_REASON = 300
#: Bytes to which engines expect arrays to be aligned.
ALIGNMENT = 16

#: Reason of the first refusal, which a warning has reported.
_complaints: list[str] = []

Shape = tuple[int, ...]


class Operand(NamedTuple):
    """An array that a graph reads or writes.

    Attributes:
        shape: Its shape, of at least four dimensions for a convolution.
        strides: Counted in elements. There are no gaps between them.
        dtype: ``'f'`` or ``'e'``, as of NumPy.
    """

    shape: Shape
    strides: Shape
    dtype: str


class EngineChoice(NamedTuple):
    """The engines that may compute.

    Attributes:
        tensor_cores: Whether products may be of float16, or float32 in 19 bits. Sums
            are in float32 all the same.
        is_deterministic: Whether the same inputs must give the same bits.
        is_tuned: Whether engines are tried, and the fastest one is taken.
    """

    tensor_cores: bool = False
    is_deterministic: bool = False
    is_tuned: bool = False


class Request(NamedTuple):
    """An operation to compute, with the tensors it works on.

    Attributes:
        operation: Adds its nodes to a graph. It gets the graph, tensors for the inputs
            and then the scalars, ``parameters`` by name, and returns those of outputs.
        inputs: In the order in which arrays are given.
        outputs: They follow the inputs.
        parameters: Sequences of numbers by name.
        scalars: Numbers that the graph reads when it runs.
        choice: The engines that may compute.
        device: The number of the GPU.
    """

    operation: Callable[..., Sequence[Any]]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    parameters: tuple[tuple[str, Shape], ...] = ()
    scalars: tuple[float, ...] = ()
    choice: EngineChoice = EngineChoice()
    device: int = 0


class Graph(NamedTuple):
    """A graph that has an engine.

    Attributes:
        graph: The package's own.
        uids: Its names for the inputs, the outputs and the scalars.
        scalars: The memory of the latter.
        n_bytes: Bytes of memory that the engine needs while it computes.
        device: The number of the GPU.
    """

    graph: Any
    uids: tuple[int, ...]
    scalars: np.ndarray
    n_bytes: int
    device: int


@functools.cache
def library() -> ModuleType | None:
    """Returns the package; ``None`` without it, with a warning if it is broken."""
    if importlib.util.find_spec("cudnn") is None:
        return None
    try:
        package = importlib.import_module("cudnn")
        package.backend_version()
    # A package of the name may be another one, or lack the library that it is for.
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        warnings.warn(
            "chainer_kernels leaves convolutions on GPUs to Chainer: cuDNN cannot be"
            f" used ({error!r}). It comes with the package nvidia-cudnn-cu12 or"
            " nvidia-cudnn-cu13.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return package


def find(request: Request, is_vital: bool = True) -> Graph | None:
    """Returns the graph of a request, made or kept; ``None`` where cuDNN refuses it.

    Args:
        request: The computation, with its shapes and dtypes.
        is_vital: Whether to warn of a refusal.
    """
    found = _here.made(request)
    if isinstance(found, Graph):
        return found
    if is_vital:
        arrays = ", ".join(f"{each.shape} {each.dtype}" for each in request.inputs)
        _complain(
            f"{request.operation.__name__.strip('_')} of {arrays},"
            f" {dict(request.parameters)}, {request.choice}: {found}"
        )
    return None


def execute(graph: Graph, arrays: Sequence[Any]) -> None:
    """Computes, on CuPy's current stream, without waiting for it.

    Args:
        graph: Found for their shapes.
        arrays: Inputs and outputs, of CuPy.
    """
    _run(graph, [array.data.ptr for array in arrays])


def _run(graph: Graph, pointers: Sequence[int]) -> None:
    scalars = graph.scalars
    start, step = scalars.ctypes.data, scalars.itemsize
    hosts = [start + i * step for i in range(scalars.size)]
    handle = _here.handle(graph.device)
    library().set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
    # Memory of the stream's own pool: what uses it next, does so afterwards.
    workspace = cupy.cuda.alloc(max(1, graph.n_bytes))
    graph.graph.execute(
        dict(zip(graph.uids, (*pointers, *hosts))), workspace.ptr, handle=handle
    )


class _Lease:
    """A handle, lent to a thread until it ends."""

    _returned: dict[int, list[Any]] = collections.defaultdict(list)

    def __init__(self, device: int) -> None:
        self._device = device
        try:
            self.handle = self._returned[device].pop()
        except IndexError:
            self.handle = library().create_handle()

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._returned[self._device].append(self.handle)


class _Here(threading.local):
    """The graphs and handles of a thread."""

    def __init__(self) -> None:
        self.made = functools.lru_cache(_KEPT)(_make)
        self._leases: dict[int, _Lease] = {}

    def handle(self, device: int) -> Any:
        """Returns the handle for a GPU, which must be the current one."""
        if device not in self._leases:
            self._leases[device] = _Lease(device)
        return self._leases[device].handle


def _make(request: Request) -> Graph | str:
    """Makes a graph; returns the reason where there is none."""
    cudnn = library()
    try:
        return _with_engine(request, *_described(request))
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
        return textwrap.shorten(str(error), _LONGEST_REASON)


_here = _Here()


def _described(request: Request) -> tuple[Any, tuple[int, ...]]:
    """Returns a graph without an engine, and its names for tensors."""
    cudnn = library()
    types = {"f": cudnn.data_type.FLOAT, "e": cudnn.data_type.HALF}
    graph = cudnn.pygraph(
        handle=_here.handle(request.device),
        io_data_type=types[request.inputs[0].dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    inputs = [
        graph.tensor(
            dim=list(each.shape),
            stride=list(each.strides),
            data_type=types[each.dtype],
        )
        for each in request.inputs
    ]
    scalars = [
        graph.tensor(
            dim=[1] * 4,
            stride=[1] * 4,
            data_type=cudnn.data_type.FLOAT,
            is_pass_by_value=True,
        )
        for _ in request.scalars
    ]
    parameters = {name: list(numbers) for name, numbers in request.parameters}
    outputs = request.operation(graph, *inputs, *scalars, **parameters)
    for tensor, each in zip(outputs, request.outputs):
        tensor.set_output(True).set_data_type(types[each.dtype])
        tensor.set_dim(list(each.shape)).set_stride(list(each.strides))
    graph.validate()
    return graph, tuple(tensor.get_uid() for tensor in (*inputs, *outputs, *scalars))


def _with_engine(request: Request, graph: Any, uids: tuple[int, ...]) -> Graph:
    cudnn, choice = library(), request.choice
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    note = cudnn.numerical_note
    barred = [note.REDUCED_PRECISION_REDUCTION]
    if not choice.tensor_cores:
        barred += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
    if choice.is_deterministic:
        barred.append(note.NONDETERMINISTIC)
    graph.deselect_numeric_notes(barred)
    _, n_bytes = cupy.cuda.runtime.memGetInfo()
    graph.deselect_workspace_greater_than(int(n_bytes * _WORKSPACE))
    scalars = np.array(request.scalars, np.float32)
    made = Graph(graph, uids, scalars, 0, request.device)
    built = _built(graph)
    if choice.is_tuned:
        graph.build_plan_at_index(_fastest(request, made, built))
    else:
        next(built)
    return made._replace(n_bytes=graph.get_workspace_size())


def _built(graph: Any) -> Iterator[int]:
    """Generates the engines that can compute, best first; the last one is selected.

    Raises:
        RuntimeError: No engine can compute.
    """
    reason, is_any = "no engine is known", False
    for i in range(graph.get_execution_plan_count()):
        try:
            graph.build_plan_at_index(i)
        # One engine may refuse, or a note may exclude it: another one may compute.
        except (library().cudnnGraphNotSupportedError, RuntimeError, ValueError) as e:
            reason = str(e)
            continue
        is_any = True
        yield i
    if not is_any:
        raise RuntimeError(reason)


def _fastest(request: Request, made: Graph, built: Iterator[int]) -> int:
    """Returns the engine that took least time, of the first ones."""
    operands = (*request.inputs, *request.outputs)
    memory = [
        cupy.cuda.alloc(math.prod(each.shape) * np.dtype(each.dtype).itemsize)
        for each in operands
    ]
    times: dict[int, float] = {}
    for i in built:
        candidate = made._replace(n_bytes=made.graph.get_workspace_size())
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        _run(candidate, [each.ptr for each in memory])
        start.record()
        for _ in range(_N_RUNS):
            _run(candidate, [each.ptr for each in memory])
        stop.record()
        stop.synchronize()
        times[i] = cupy.cuda.get_elapsed_time(start, stop)
        if len(times) == _N_TUNED:
            break
    return min(times, key=times.__getitem__)


def _complain(reason: str) -> None:
    """Warns, once, that Chainer computes what cuDNN refuses."""
    if not _complaints:
        _complaints.append(reason)
        warnings.warn(
            f"chainer_kernels leaves to Chainer what cuDNN refuses: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
