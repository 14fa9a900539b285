"""A GPU's arrays and the package ``cudnn``, played by NumPy.

Graphs read and write memory at the addresses that they are given, by the shapes and
strides that they were told, so that what is told wrong gives wrong numbers.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Callable
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np

import chainer_kernels
from chainer_kernels.functions import gpu_choice
from chainer_kernels.providers import cudnn, cudnn_library

#: The address of CuPy's current stream, and how many bytes an engine may take.
STREAM, WORKSPACE = 7, 1000


class Array(np.ndarray):
    """An array that looks like one of CuPy."""

    @property
    def data(self) -> Any:
        """Its memory."""
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


def on_gpu(array: Any) -> Array:
    """Returns an array as one of the GPU."""
    return np.asarray(array).view(Array)


class NotSupportedError(Exception):
    """The package's own error."""


class Tensor:
    """What a graph knows of an array."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.value: Any = None

    def get_uid(self) -> int:
        """Returns its name in the graph."""
        return self.uid

    def set_output(self, is_output: bool) -> Tensor:
        """Marks what is computed."""
        assert is_output
        return self

    def set_data_type(self, dtype: str) -> Tensor:
        """Sets the dtype."""
        self.dtype = dtype
        return self

    def set_dim(self, shape: list[int]) -> Tensor:
        """Sets the shape."""
        self.shape = shape
        return self

    def set_stride(self, strides: list[int]) -> Tensor:
        """Sets the strides."""
        self.strides = strides
        return self

    def at(self, address: int) -> np.ndarray:
        """Returns the memory there as this tensor describes it."""
        dtype = np.dtype(self.dtype)
        n = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides))
        memory = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
        strides = [step * dtype.itemsize for step in self.strides]
        return np.ndarray(self.shape, dtype, memory, 0, strides)


class Graph:
    """A graph of the package."""

    #: Of each engine, the notes that exclude it.
    engines: tuple[set[str], ...] = (set(),)
    #: Names of operations for which there is no engine.
    refused: frozenset[str] = frozenset()
    made: list[Graph] = []

    def __init__(self, handle: Any, **types: Any) -> None:
        assert types["compute_data_type"] == "f"
        self._uids = itertools.count(1)
        self._tensors: list[Tensor] = []
        self._computations: list[tuple[str, Callable[[], Any], list[Tensor]]] = []
        self.barred: set[str] = set()
        self.selected = -1
        self.streams: list[int] = []
        self.made.append(self)

    def tensor(
        self, dim: Any, stride: Any, data_type: str, is_pass_by_value: bool = False
    ) -> Tensor:
        """Adds an input."""
        tensor = self._new()
        tensor.set_dim(dim).set_stride(stride).set_data_type(data_type)
        return tensor

    def _new(self) -> Tensor:
        self._tensors.append(Tensor(next(self._uids)))
        return self._tensors[-1]

    def _add(self, name: str, n: int, compute: Callable[[], Any]) -> list[Tensor]:
        outputs = [self._new() for _ in range(n)]
        self._computations.append((name, compute, outputs))
        return outputs

    def conv_fprop(self, image: Tensor, weight: Tensor, **windows: Any) -> Tensor:
        """Adds a convolution."""

        def compute() -> Any:
            with chainer_kernels.disabled():
                return (_convolved(image.value, weight.value, windows).array,)

        return self._add("conv_fprop", 1, compute)[0]

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        """Adds a bias."""
        return self._add("bias", 1, lambda: (input.value + bias.value,))[0]

    def conv_dgrad(self, loss: Tensor, filter: Tensor, **windows: Any) -> Tensor:
        """Adds the gradient of a convolution's input."""

        def compute() -> Any:
            x = np.zeros(out.shape)
            return (_gradients(x, filter.value, loss.value, windows)[0],)

        (out,) = self._add("conv_dgrad", 1, compute)
        return out

    def conv_wgrad(self, image: Tensor, loss: Tensor, **windows: Any) -> Tensor:
        """Adds the gradient of a convolution's weights."""

        def compute() -> Any:
            W = np.zeros(out.shape)
            return (_gradients(image.value, W, loss.value, windows)[1],)

        (out,) = self._add("conv_wgrad", 1, compute)
        return out

    def batchnorm(
        self,
        input: Tensor,
        scale: Tensor,
        bias: Tensor,
        in_running_mean: Tensor,
        in_running_var: Tensor,
        epsilon: Tensor,
        momentum: Tensor,
    ) -> list[Tensor]:
        """Adds a batch normalization."""

        def compute() -> Any:
            x, share = input.value, momentum.value
            mean = x.mean((0, 2, 3), keepdims=True)
            var = x.var((0, 2, 3), keepdims=True)
            n = x.size // x.shape[1]
            inv_std = 1 / np.sqrt(var + epsilon.value)
            return (
                (x - mean) * inv_std * scale.value + bias.value,
                *(mean, inv_std),
                (1 - share) * in_running_mean.value + share * mean,
                (1 - share) * in_running_var.value + share * var * n / (n - 1),
            )

        return self._add("batchnorm", 5, compute)

    def batchnorm_backward(
        self,
        grad: Tensor,
        input: Tensor,
        scale: Tensor,
        mean: Tensor,
        inv_variance: Tensor,
    ) -> list[Tensor]:
        """Adds the gradients of a batch normalization."""

        def compute() -> Any:
            axes = (0, 2, 3)
            x_hat = (input.value - mean.value) * inv_variance.value
            ggamma = (grad.value * x_hat).sum(axes, keepdims=True)
            gbeta = grad.value.sum(axes, keepdims=True)
            share = x_hat.shape[1] / x_hat.size
            slope = grad.value - (x_hat * ggamma + gbeta) * share
            return scale.value * inv_variance.value * slope, ggamma, gbeta

        return self._add("batchnorm_backward", 3, compute)

    def validate(self) -> None:
        """Does nothing."""

    def build_operation_graph(self) -> None:
        """Does nothing."""

    def create_execution_plans(self, modes: list[str]) -> None:
        """Refuses what there is no engine for."""
        for name, _, _ in self._computations:
            if name in self.refused:
                raise NotSupportedError(f"there is no engine for {name}")

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        """Excludes engines."""
        self.barred |= set(notes)

    def deselect_workspace_greater_than(self, n_bytes: int) -> None:
        """Knows how many are allowed."""
        assert n_bytes == WORKSPACE

    def get_execution_plan_count(self) -> int:
        """Returns the number of engines."""
        return len(self.engines)

    def build_plan_at_index(self, index: int) -> None:
        """Selects an engine."""
        if self.engines[index] & self.barred:
            raise NotSupportedError("the engine is excluded")
        self.selected = index

    def get_workspace_size(self) -> int:
        """Returns what the selected engine needs."""
        assert self.selected >= 0
        return 16

    def execute(self, addresses: dict[int, int], workspace: int, handle: Any) -> None:
        """Computes."""
        assert workspace
        self.streams.append(handle.stream)
        arrays = {
            t.uid: t.at(addresses[t.uid]) for t in self._tensors if t.uid in addresses
        }
        computed = {t.uid for *_, outputs in self._computations for t in outputs}
        for tensor in self._tensors:
            if tensor.uid not in computed:
                tensor.value = arrays[tensor.uid].astype("d")
        for _, compute, outputs in self._computations:
            for tensor, value in zip(outputs, compute()):
                tensor.value = value
                if tensor.uid in arrays:
                    arrays[tensor.uid][...] = value


def _convolved(x: Any, W: Any, windows: dict[str, Any]) -> chainer.Variable:
    return F.convolution_nd(
        *(x, W, None, windows["stride"], windows["padding"], False),
        *(windows["dilation"], x.shape[1] // W.shape[1]),
    )


def _gradients(x: Any, W: Any, gy: Any, windows: dict[str, Any]) -> list[np.ndarray]:
    x, W = chainer.Variable(x), chainer.Variable(W)
    with chainer_kernels.disabled():
        y = _convolved(x, W, windows)
        found = chainer.grad([y], [x, W], [chainer.Variable(gy)])
    return [each.array for each in found]


class _Event:
    """A moment on a stream of time in which later engines are the faster ones."""

    def __init__(self, graphs: type[Graph]) -> None:
        self._graphs = graphs

    def record(self) -> None:
        """Notes the time."""
        self.time = -self._graphs.made[-1].selected

    def synchronize(self) -> None:
        """Does nothing."""


class _Memory:
    """Memory of the GPU's pool."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = np.zeros(n_bytes, np.uint8)
        self.ptr = self._memory.ctypes.data


def _package() -> SimpleNamespace:
    notes = (
        *("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"),
        "NONDETERMINISTIC",
    )

    def set_stream(handle: Any, stream: int) -> None:
        handle.stream = stream

    return SimpleNamespace(
        data_type=SimpleNamespace(FLOAT="f", HALF="e"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="fallback"),
        numerical_note=SimpleNamespace(**{note: note for note in notes}),
        cudnnGraphNotSupportedError=NotSupportedError,
        backend_version_string=lambda: "9.0",
        create_handle=SimpleNamespace,
        set_stream=set_stream,
        pygraph=Graph,
    )


@contextlib.contextmanager
def gpu() -> Iterator[type[Graph]]:
    """Puts all of it in the place of a GPU for a block.

    Returns:
        A context manager, with the class of the block's graphs.
    """

    class Fake(Graph):
        made: list[Graph] = []

    package = _package()
    package.pygraph = Fake
    cupy = SimpleNamespace(
        empty=lambda shape, dtype: on_gpu(np.full(shape, np.nan, dtype)),
        zeros=lambda shape, dtype: on_gpu(np.zeros(shape, dtype)),
        ascontiguousarray=lambda a: on_gpu(np.ascontiguousarray(a)),
        cuda=SimpleNamespace(
            alloc=_Memory,
            runtime=SimpleNamespace(
                getDevice=lambda: 0, memGetInfo=lambda: (0, 8 * WORKSPACE)
            ),
            get_current_stream=lambda: SimpleNamespace(ptr=STREAM),
            Event=lambda: _Event(Fake),
            get_elapsed_time=lambda start, stop: stop.time,
        ),
    )
    cuda = SimpleNamespace(
        ndarray=Array,
        available=True,
        cudnn_enabled=False,
        _cudnn_disabled_by_user=False,
        should_use_cudnn_tensor_core=chainer.backends.cuda.should_use_cudnn_tensor_core,
    )
    with contextlib.ExitStack() as stack:
        for owner, name, stand_in in (
            (cudnn_library, "library", lambda: package),
            (cudnn_library, "cupy", cupy),
            (cudnn_library, "_here", cudnn_library._Here()),
            (cudnn_library, "_complaints", []),
            (cudnn_library._Lease, "_returned", collections.defaultdict(list)),
            (cudnn, "cupy", cupy),
            (gpu_choice, "cuda", cuda),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield Fake
