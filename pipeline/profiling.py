"""Measures what the layers of a model cost.

Each layer runs by itself, as a stage of one layer, by the code that the pipeline runs::

    for each layer      a copy of it alone; the model keeps its parameters and gradients
      forward once      parameters made at the first call; what the graph retains
      F, I, W in turn   seconds: medians
      F, I, W once more under a memory tracer: what they allocate in passing

so that no more is ever in memory than the model as it is given, and one layer with its
activations.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from divisible import Divisible
from divisible.layer_costs import LayerCost, Profile
from pipeline import backprop
from pipeline.loss import Loss
from pipeline.message import Tensor, Tensors
from pipeline.retained import Owners, retained_arrays
from pipeline.stage import Stage
from pipeline.weight_gradients import WeightGradients

#: The phases of a microbatch that are measured.
_PHASES = ("forward", "backward_input", "backward_weight")


def profile(
    model: Divisible,
    x: Any,
    t: Any = None,
    lossfun: Callable | None = None,
    *,
    optimizer: chainer.GradientMethod | None = None,
    repeat: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measures what each layer of a model costs.

    Give a microbatch of the size in use. The model stays as it is: parameters,
    gradients, running averages and the random state of NumPy. Its layers are copied
    one by one, and parameters that are made at the first call are made in the copy, so
    a model whose layers are not there yet takes no more memory than its largest layer.

    Args:
        model (Divisible): The undivided model.
        x (array or tuple of arrays): Input of the model, samples along the first axis.
        t (array or tuple of arrays): Targets; without them, and without ``lossfun``,
            there is no loss.
        lossfun: ``lossfun(*outputs, *targets)``, a scalar variable; softmax cross
            entropy by default.
        optimizer (chainer.GradientMethod): The optimizer in use, whose state counts
            as memory; without it there is none.
        repeat (int): How often each layer is measured; the medians count. It runs once
            before.
        progress: Called with the number of layers measured and that of all.

    Returns:
        Profile: Printed, it is a table.

    Raises:
        TypeError: If ``model`` is not a ``Divisible``, or ``x`` or ``t`` not arrays.
        ValueError: If ``repeat`` is less than 1, or ``model`` is a stage that does not
            begin with the first layer.
        Exception: What a layer raises, with its position as ``layer_position``.

    Example:
        >>> import chainer.links as L
        >>> model = Divisible(L.Linear(50, 20), F.relu, L.Linear(20, 10))
        >>> x, t = np.ones((8, 50), np.float32), np.zeros(8, np.int32)
        >>> costs = profile(model, x, t)
        >>> costs.layers[0].output_bytes == 8 * 20 * 4
        True
        >>> costs.layers[2].parameter_bytes == (20 * 10 + 10) * 4
        True
    """
    if not isinstance(model, Divisible):
        raise TypeError(f"model must be a Divisible, not {type(model).__name__}")
    if repeat < 1:
        raise ValueError(f"repeat must be 1 at least, not {repeat}")
    if model.layer_range != (0, len(model.model_layers)):
        raise ValueError(
            f"the layers {model.layer_range} are a part of a model: profile the whole,"
            f" it is measured layer by layer"
        )
    arrays = _arrays("x", x)
    targets = None if t is None else _arrays("t", t)
    device = model.device
    inputs: Tensors = tuple(Tensor(device.send(array)) for array in arrays)
    # Arrays that are counted already, on their way from layer to layer.
    counted = Owners(tensor.array for tensor in inputs)
    costs: list[LayerCost] = []
    n = len(model)
    with _as_in_training(), chainer.using_device(device):
        for position in range(n):
            layer = _Layer(model, position, optimizer)
            cost, inputs = layer.measure(inputs, counted, costs, repeat)
            costs.append(cost)
            if progress is not None:
                progress(position + 1, n)
        loss = None
        if targets is not None or lossfun is not None:
            lossfun = F.softmax_cross_entropy if lossfun is None else lossfun
            loss = _loss_cost(device, lossfun, inputs, targets, repeat)
    return Profile(
        costs,
        n_samples=len(arrays[0]),
        input_bytes=sum(array.nbytes for array in arrays),
        loss=loss,
        machine=_machine(device),
    )


class _Layer:
    """One layer of a model, copied, to be run by itself."""

    def __init__(
        self, model: Divisible, position: int, optimizer: chainer.GradientMethod | None
    ) -> None:
        self.name = model.model_layers[position]
        first = model.first_positions[position]
        self.repeats = None if first == position else first
        self.part = copy.deepcopy(model.divide(position, position + 1))
        self.optimizer = optimizer

    def measure(
        self, inputs: Tensors, counted: Owners, costs: list[LayerCost], repeat: int
    ) -> tuple[LayerCost, Tensors]:
        """Returns what the layer costs, and its outputs.

        Args:
            inputs: What the layer before returned.
            counted: Arrays among them that count already; changed to those of the
                outputs.
            costs: Those of the layers before; the last one is charged with inputs
                that only this layer retains.
            repeat: How often to measure.
        """
        bytes_of, outputs = self._hold(inputs, counted, costs)
        gradients = tuple(Tensor(_ones(tensor)) for tensor in outputs)
        runs = _Runs(Stage(self.part), inputs, gradients)
        seconds = runs.seconds(self.part.device, repeat)
        workspace = runs.workspace(self.part.device)
        parameters = [] if self.repeats is not None else list(self.part.params())
        cost = LayerCost(
            **seconds,
            **bytes_of,
            parameter_bytes=sum(param.array.nbytes for param in parameters),
            optimizer_bytes=_state_bytes(self.optimizer, parameters),
            workspace_bytes=workspace,
            name=self.name,
            repeats=self.repeats,
        )
        return cost, outputs

    def _hold(
        self, inputs: Tensors, counted: Owners, costs: list[LayerCost]
    ) -> tuple[dict[str, int], Tensors]:
        """Runs the layer once and sees what it holds on to."""
        values = [tensor.value() for tensor in inputs]
        variables = [x for x in values if isinstance(x, chainer.Variable)]
        results = self.part(*values)
        results = results if isinstance(results, tuple) else (results,)
        outputs = tuple(map(Tensor.of, results))
        before = Owners(tensor.array for tensor in inputs)
        persistent = Owners(_persistents(self.part))
        held = Owners(retained_arrays(results)) - persistent
        if costs:
            # What the layer before returned and did not hold, but this one does.
            late = (held & before) - counted
            costs[-1] = _with_late(costs[-1], late.nbytes)
        counted |= held & before
        own = held - before
        arrays = Owners(tensor.array for tensor in outputs)
        loose = arrays - own - before
        counted &= arrays
        counted |= own & arrays
        pending = self._pending(variables, results, persistent)
        return {
            "output_bytes": sum(tensor.array.nbytes for tensor in outputs),
            "activation_bytes": own.nbytes,
            "loose_output_bytes": loose.nbytes,
            "pending_bytes": pending,
        }, outputs

    def _pending(
        self, variables: list[chainer.Variable], results: tuple, persistent: Owners
    ) -> int:
        """Runs backward to see what is held between I and W; consumes the graph."""
        variables = list(variables)
        outputs = [y for y in results if isinstance(y, chainer.Variable)]
        gradients = [_ones(Tensor.of(y)) for y in outputs]
        weights = WeightGradients(self.part.params)
        weights.begin()
        _, pending = backprop.backward_input(variables, outputs, gradients, weights)
        return (Owners(pending.arrays()) - persistent).nbytes


class _Runs:
    """Forward, I and W of one microbatch, again and again."""

    def __init__(self, stage: Stage, inputs: Tensors, gradients: Tensors) -> None:
        self._stage = stage
        self._inputs = inputs
        self._gradients = gradients
        stage.begin()

    def phases(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yields what to run, in its order."""
        yield "forward", lambda: self._stage.forward(0, self._inputs)
        yield "backward_input", lambda: self._stage.backward_input(0, self._gradients)
        yield "backward_weight", lambda: self._stage.backward_weight(0)

    def seconds(self, device: Any, repeat: int) -> dict[str, float]:
        """Returns the median seconds of each phase; it runs once before."""
        clock = _GpuClock() if device.xp is not np else _Clock()
        times: dict[str, list[float]] = {name: [] for name in _PHASES}
        # Collecting garbage in the middle would be measured as well.
        enabled = gc.isenabled()
        gc.disable()
        try:
            for _ in range(repeat + 1):
                for name, run in self.phases():
                    times[name].append(clock.seconds(run))
        finally:
            if enabled:
                gc.enable()
        return {name: statistics.median(values[1:]) for name, values in times.items()}

    def workspace(self, device: Any) -> int:
        """Returns the most bytes that a phase allocates and frees again."""
        tracer = _GpuTracer() if device.xp is not np else _Tracer()
        most = 0
        with tracer:
            for _, run in self.phases():
                before = tracer.now()
                result = run()
                peak = tracer.peak()
                most = max(most, peak - max(before, tracer.now()))
                del result
        return most


class _Clock:
    """Seconds on a CPU."""

    def seconds(self, run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        result = run()
        end = time.perf_counter()
        # Freed after the time was taken, as it is sent in a pipeline.
        del result
        return end - start


class _GpuClock:
    """Seconds on a GPU, from events in its stream."""

    def seconds(self, run: Callable[[], Any]) -> float:
        cuda = chainer.backends.cuda.cupy.cuda
        start, end = cuda.Event(), cuda.Event()
        start.record()
        result = run()
        end.record()
        end.synchronize()
        del result
        return cuda.get_elapsed_time(start, end) / 1000


class _Tracer:
    """Bytes that Python and NumPy have allocated."""

    def __enter__(self) -> _Tracer:
        self._started = not tracemalloc.is_tracing()
        if self._started:
            tracemalloc.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._started:
            tracemalloc.stop()

    def now(self) -> int:
        tracemalloc.reset_peak()
        return tracemalloc.get_traced_memory()[0]

    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1]


class _GpuTracer:
    """Bytes that CuPy's memory pool has handed out."""

    def __enter__(self) -> _GpuTracer:
        cuda = chainer.backends.cuda.cupy.cuda

        class Hook(cuda.MemoryHook):
            name = "divisible.profile"

            def malloc_postprocess(_, **arguments: Any) -> None:
                self._bytes += arguments["mem_size"]
                self._peak = max(self._peak, self._bytes)

            def free_postprocess(_, **arguments: Any) -> None:
                self._bytes -= arguments["mem_size"]

        self._bytes = self._peak = 0
        self._hook = Hook()
        self._hook.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.__exit__(*error)

    def now(self) -> int:
        self._peak = self._bytes
        return self._bytes

    def peak(self) -> int:
        return self._peak


def _loss_cost(
    device: Any,
    lossfun: Callable,
    inputs: Tensors,
    targets: tuple | None,
    repeat: int,
) -> LayerCost:
    """Measures the loss as the last stage runs it, on a stage without layers."""
    name = getattr(lossfun, "__qualname__", None) or type(lossfun).__name__
    parts = () if targets is None else tuple(map(device.send, targets))
    loss = Loss(lossfun, None)
    n_samples = len(parts[0]) if parts else len(inputs[0].array)
    loss.start([parts], [n_samples])
    values = [tensor.value() for tensor in inputs]
    held = Owners(retained_arrays((loss(0, values),)))
    held -= Owners(tensor.array for tensor in inputs)
    held -= Owners(parts)
    runs = _Runs(Stage(Divisible(_pass), loss), inputs, ())
    return LayerCost(
        **runs.seconds(device, repeat),
        activation_bytes=held.nbytes,
        workspace_bytes=runs.workspace(device),
        name=name,
    )


def _pass(*values: Any) -> Any:
    return values if len(values) > 1 else values[0]


def _arrays(name: str, value: Any) -> tuple:
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    for array in arrays:
        if not isinstance(array, chainer.get_array_types()):
            raise TypeError(
                f"{name} must be an array or a tuple of arrays, not"
                f" {type(array).__name__}"
            )
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"{name} has no samples: its shape is {array.shape}")
    return tuple(arrays)


def _ones(tensor: Tensor) -> Any:
    """Returns a gradient for an output, or None if there can be none."""
    if not tensor.requires_grad or tensor.array.dtype.kind != "f":
        return None
    return chainer.backend.get_array_module(tensor.array).ones_like(tensor.array)


def _with_late(cost: LayerCost, nbytes: int) -> LayerCost:
    """Charges a layer with outputs that the next one holds."""
    return dataclasses.replace(
        cost,
        activation_bytes=cost.activation_bytes + nbytes,
        loose_output_bytes=max(0, cost.loose_output_bytes - nbytes),
    )


def _persistents(part: Divisible) -> Iterator[Any]:
    for link in part.links():
        for name in link._persistent:
            yield getattr(link, name)
    for param in part.params():
        yield param.array


def _state_bytes(
    optimizer: chainer.GradientMethod | None, parameters: list[chainer.Parameter]
) -> int:
    """Returns the size of an optimizer's state, made for one parameter at a time."""
    if optimizer is None:
        return 0
    total = 0
    for param in parameters:
        rule = optimizer.create_update_rule()
        rule._init_states(param)
        total += sum(
            value.nbytes
            for value in rule.state.values()
            if isinstance(value, chainer.get_array_types())
        )
    return total


def _machine(device: Any) -> str:
    if device.xp is not np:
        return str(device)
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return f"{platform.node()}, {device}, OMP_NUM_THREADS={threads}"


@contextlib.contextmanager
def _as_in_training() -> Iterator[None]:
    state = np.random.get_state()
    try:
        with chainer.using_config("train", True), chainer.force_backprop_mode():
            yield
    finally:
        np.random.set_state(state)
