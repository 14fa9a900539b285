"""Measures what the layers of a model cost.

Each layer runs by itself, backward by the code that the pipeline runs::

    for each layer       a copy of it alone; the model keeps its parameters
      F, I, W once       parameters made at the first call; what is held after F and I
      F, I, W repeatedly the median of their seconds
      F, I, W once more  under a memory tracer: what they allocate in passing

so that no more is ever in memory than the model as it is given, and one layer with its
activations.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
import platform
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from divisible.backward.tensors import to_tensor
from divisible.communication.signatures import Tensor, Tensors
from divisible.dtypes import as_trainable, floating_dtypes, in_loss_dtype
from divisible.model import Divisible
from divisible.minibatch import as_arrays
from divisible.planning.profile import LayerCost, Profile
from divisible.planning.retained_arrays import BufferSet, retained_arrays
from divisible.planning.timed_phases import Phases

# How many times their medians the layers may take on average without a warning, and
# how many seconds more: those of an interrupt or two.
_DISTURBED, _NOISE = 1.3, 3e-3


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

    A :class:`RuntimeWarning` says so if the machine was disturbed, or stopped the
    process now and then because its CPU time has a quota: medians then tell how fast
    it is in between. (It takes three repeats to see that.)

    Of layers that were appended with ``recompute=True`` the second forward counts as a
    part of I; what they hold then, all of neighbouring ones, as workspace.

    Args:
        model (Divisible): The undivided model.
        x (array or tuple of arrays): Input of the model, samples along the first axis,
            as a :class:`~pipeline.Pipeline` takes it.
        t (array or tuple of arrays): Targets; without them, and without ``lossfun``,
            there is no loss.
        lossfun: ``lossfun(*outputs, *targets)``, a scalar variable; softmax cross
            entropy by default.
        optimizer (chainer.GradientMethod): The optimizer in use, whose state counts
            as memory; without it there is none. A
            :class:`~mixed_precision.MixedPrecision` counts with its master weights, and
            with unscaled gradients if its update rule or the hooks it has need them.
        repeat (int): How often each layer is measured; the medians count. It runs once
            before.
        progress: Called with the number of layers measured and that of all.

    Returns:
        Profile: Printed, it is a table.

    Raises:
        TypeError: If ``model`` is not a ``Divisible``, ``x`` or ``t`` are not arrays,
            ``x`` has another floating-point type than the parameters, or ``optimizer``
            is none.
        ValueError: If ``repeat`` is less than 1, ``x`` and ``t`` are not of as many
            samples, or ``model`` is a stage that does not
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
    is_mixed = hasattr(optimizer, "update_bytes") and not isinstance(optimizer, type)
    if not (isinstance(optimizer, (chainer.GradientMethod, type(None))) or is_mixed):
        raise TypeError(
            f"optimizer must be a GradientMethod, such as optimizers.Adam(), or"
            f" MixedPrecision of one, not {optimizer!r}"
        )
    if repeat < 1:
        raise ValueError(f"repeat must be 1 at least, not {repeat}")
    if model.layer_range != (0, len(model.model_layers)):
        raise ValueError(
            f"the layers {model.layer_range} are a part of a model: profile the whole,"
            f" it is measured layer by layer"
        )
    # As a pipeline does, which casts inputs to float16 if the layers are.
    dtypes = floating_dtypes(model)
    arrays = tuple(as_trainable(array, dtypes) for array in as_arrays("x", x))
    targets = None if t is None else as_arrays("t", t)
    if targets is not None and len(targets[0]) != len(arrays[0]):
        raise ValueError(
            f"x has {len(arrays[0])} samples, but t has {len(targets[0])}: x and t must"
            f" be of the same minibatch"
        )
    device = model.device
    inputs: Tensors = tuple(Tensor(device.send(array)) for array in arrays)
    # Arrays that are counted already, on their way from layer to layer.
    counted = BufferSet(tensor.array for tensor in inputs)
    costs: list[LayerCost] = []
    # For each layer what it holds while it is run again, and how long it took.
    again: list[int] = []
    mean_seconds = []
    n = len(model)
    skips = _Skips(model)
    with _as_in_training(), chainer.using_device(device):
        for position in range(n):
            skipped = skips.take(position, counted)
            layer = _Layer(model, position, optimizer, skipped)
            begins = position == 0 or not model.recomputed[position - 1]
            try:
                cost, inputs = layer.measure(inputs, counted, costs, repeat, begins)
            except Exception as error:
                error.layer_position = position
                raise
            again.append(layer.held_again)
            mean_seconds.append(layer.mean_seconds)
            handed_over = skips.hand_over(position, inputs, counted)
            costs.append(
                dataclasses.replace(
                    _held_too(cost, handed_over),
                    output_bytes=cost.output_bytes + skips.nbytes,
                    passing_bytes=skips.nbytes,
                    skip_bytes=_nbytes(skipped.values()),
                )
            )
            if progress is not None:
                progress(position + 1, n)
        _warn_if_disturbed(sum(mean_seconds), sum(cost.seconds for cost in costs))
        costs = _run_again(costs, again, model.recomputed)
        loss = None
        if targets is not None or lossfun is not None:
            lossfun = F.softmax_cross_entropy if lossfun is None else lossfun
            loss = _loss_cost(
                device, lossfun, inputs, targets or (), counted, optimizer, repeat
            )
    return Profile(
        costs,
        n_samples=len(arrays[0]),
        input_bytes=sum(array.nbytes for array in arrays),
        loss=loss,
        machine=_machine(device),
    )


class _Skips:
    """What skip connections carry past the layer that is measured.

    Args:
        model: The undivided model.
    """

    def __init__(self, model: Divisible) -> None:
        self._ends = model.skips
        self._carried: dict[str, tuple[Tensors, BufferSet]] = {}

    def take(self, position: int, counted: BufferSet) -> dict[str, Tensors]:
        """Returns what a layer takes, by name."""
        taken = {}
        for skip in self._ends:
            if skip.pop == position:
                taken[skip.name], counted_before = self._carried.pop(skip.name)
                counted |= counted_before
        return taken

    def hand_over(self, position: int, outputs: Tensors, counted: BufferSet) -> int:
        """Keeps what a layer hands over, which is what it passes on as well.

        Args:
            position: Of the layer.
            outputs: Of the layer.
            counted: Arrays among them that count already; changed to all of them.

        Returns:
            The bytes of those that did not count. A stage holds them from forward to
            backward, whether a function of its own retains them or not.
        """
        uncounted = BufferSet()
        for skip in self._ends:
            if skip.stash == position:
                uncounted |= BufferSet(tensor.array for tensor in outputs) - counted
                counted |= uncounted
                self._carried[skip.name] = outputs, counted & counted
        return uncounted.nbytes

    @property
    def nbytes(self) -> int:
        """The bytes that cross a cut here besides the layer's output."""
        return _nbytes(tensors for tensors, _ in self._carried.values())


def _warn_if_disturbed(mean: float, median: float) -> None:
    """Warns if the layers' medians promise more than the machine keeps.

    Args:
        mean: Seconds that the layers took on average, all together.
        median: The same of their medians.
    """
    if mean > max(_DISTURBED * median, median + _NOISE):
        warnings.warn(
            f"the layers took {mean / median:.2f} times their medians on average:"
            f" something else uses the machine, or a quota limits this process's CPU"
            f" time, and stops it in some of the runs. The profile has the medians, so"
            f" plans made from it promise too much, and choose microbatches that are"
            f" too small. Measure where nothing disturbs, and give the speeds of the"
            f" slower ranks to the plan",
            RuntimeWarning,
            stacklevel=3,
        )


def _nbytes(messages: Iterable[Tensors]) -> int:
    return sum(tensor.array.nbytes for tensors in messages for tensor in tensors)


class _Layer:
    """One layer of a model, copied, to be run by itself."""

    def __init__(
        self,
        model: Divisible,
        position: int,
        optimizer: chainer.GradientMethod | None,
        skipped: dict[str, Tensors],
    ) -> None:
        self.position = position
        self.name = model.model_layers[position]
        self.part = model.divide(position, position + 1, mode="copy")
        self.optimizer = optimizer
        self.skipped = skipped
        (self.is_recomputed,) = self.part.recomputed
        #: Bytes that it holds when its forward is run again.
        self.held_again = 0
        #: Of the runs whose medians are its costs.
        self.mean_seconds = 0.0

    def _run(self, *values: Any) -> Any:
        """Runs the layer on its inputs and, behind them, what it takes from skips."""
        end = len(values) - sum(map(len, self.skipped.values()))
        rest = iter(values[end:])
        skipped = {
            name: tuple(next(rest) for _ in tensors)
            for name, tensors in self.skipped.items()
        }
        y, _ = self.part.run(values[:end], skipped)
        return y

    def measure(
        self,
        inputs: Tensors,
        counted: BufferSet,
        costs: list[LayerCost],
        repeat: int,
        begins: bool,
    ) -> tuple[LayerCost, Tensors]:
        """Returns what the layer costs, and its outputs.

        Args:
            inputs: What the layer before returned.
            counted: Arrays among them that count already; changed to those of the
                outputs.
            costs: Those of the layers before; the last one is charged with inputs
                that only this layer retains.
            repeat: How often to measure.
            begins: Whether the layer before is not one to recompute.
        """
        device = self.part.device
        for tensors in self.skipped.values():
            inputs = (*inputs, *tensors)
        runs = Phases(self._run, self.part.params, inputs)
        # Parameters may be made in this first run.
        runs.forward()
        source = f"layer {self.position} ({self.name}) returned"
        outputs = tuple(to_tensor(y, source) for y in runs.outputs)
        bytes_of = self._held(inputs, runs.outputs, counted, costs, begins)
        runs.backward_input()
        persistent = BufferSet(_persistents(self.part))
        bytes_of["pending_bytes"] = (
            BufferSet(runs.pending.arrays()) - persistent
        ).nbytes
        runs.backward_weight()
        # A layer may have some that its forward does not use, and never makes.
        parameters = list(self.part.params(include_uninit=False))
        seconds = runs.seconds(device, repeat)
        self.mean_seconds = runs.mean_seconds
        cost = LayerCost(
            **seconds,
            **bytes_of,
            parameter_bytes=sum(param.array.nbytes for param in parameters),
            optimizer_bytes=_state_bytes(self.optimizer, parameters),
            workspace_bytes=runs.workspace(device),
            name=self.name,
        )
        return cost, outputs

    def _held(
        self,
        inputs: Tensors,
        results: tuple,
        counted: BufferSet,
        costs: list[LayerCost],
        begins: bool,
    ) -> dict[str, int]:
        """Returns what the layer sends and holds."""
        before = BufferSet(tensor.array for tensor in inputs)
        held = BufferSet(retained_arrays(results)) - BufferSet(_persistents(self.part))
        arrays = [chainer.as_array(y) for y in results]
        returned = BufferSet(arrays)
        if self.is_recomputed:
            # Between forward and backward nothing but the first one's inputs.
            self.held_again = ((held | returned) - before).nbytes
            held = before if begins else BufferSet()
        if costs:
            # What the layer before returned and did not hold, but this one does.
            late = (held & before) - counted
            costs[-1] = _held_too(costs[-1], late.nbytes)
        counted |= held & before
        own = held - before
        counted |= own
        # Inputs that are passed on, if they do not count already: a view of one, say.
        loose = BufferSet() if self.is_recomputed else returned - counted
        counted &= returned
        return {
            "output_bytes": sum(array.nbytes for array in arrays),
            "activation_bytes": own.nbytes,
            "boundary_output_bytes": loose.nbytes,
        }


def _loss_cost(
    device: Any,
    lossfun: Callable,
    inputs: Tensors,
    targets: tuple,
    counted: BufferSet,
    optimizer: chainer.GradientMethod | None,
    repeat: int,
) -> LayerCost:
    """Measures the loss, which follows the last layer."""
    targets = tuple(map(device.send, targets))
    parameters: Callable[[], Iterable[chainer.Parameter]] = tuple
    if isinstance(lossfun, chainer.Link):
        lossfun = copy.deepcopy(lossfun)
        parameters = lossfun.params

    def loss(*outputs: Any) -> chainer.Variable:
        return lossfun(*map(in_loss_dtype, outputs), *targets)

    runs = Phases(loss, parameters, inputs)
    runs.forward()
    if not (isinstance(runs.outputs[0], chainer.Variable) and len(runs.outputs) == 1):
        raise TypeError(f"lossfun must return one variable, not {runs.outputs}")
    # The last layer's outputs are among it, if the loss holds them and that does not.
    held = BufferSet(retained_arrays(runs.outputs)) - BufferSet(targets) - counted
    made = [param for param in parameters() if param.is_initialized]
    held -= BufferSet(param.array for param in made)
    runs.backward_input()
    runs.backward_weight()
    return LayerCost(
        **runs.seconds(device, repeat),
        activation_bytes=held.nbytes,
        parameter_bytes=sum(param.array.nbytes for param in made),
        optimizer_bytes=_state_bytes(optimizer, made),
        workspace_bytes=runs.workspace(device),
        name=getattr(lossfun, "__qualname__", type(lossfun).__name__),
    )


def _run_again(
    costs: Sequence[LayerCost], held: Sequence[int], marks: Sequence[bool]
) -> list[LayerCost]:
    """Charges layers that are recomputed with their second forward.

    Args:
        costs: Of the layers.
        held: Bytes that each holds then. Neighbouring ones do so together, in
            whichever of them the backward is.
        marks: Whether each is recomputed.
    """
    result = list(costs)
    for is_recomputed, run in itertools.groupby(range(len(costs)), marks.__getitem__):
        if is_recomputed:
            run = list(run)
            together = sum(held[i] for i in run)
            for i in run:
                result[i] = dataclasses.replace(
                    costs[i],
                    backward_input=costs[i].backward_input + costs[i].forward,
                    workspace_bytes=costs[i].workspace_bytes + together,
                )
    return result


def _held_too(cost: LayerCost, nbytes: int) -> LayerCost:
    """Charges a layer with outputs that somebody else holds."""
    return dataclasses.replace(
        cost,
        activation_bytes=cost.activation_bytes + nbytes,
        boundary_output_bytes=max(0, cost.boundary_output_bytes - nbytes),
    )


def _persistents(part: Divisible) -> Iterator[Any]:
    for link in part.links():
        for name in link._persistent:
            value = getattr(link, name)
            if isinstance(value, chainer.get_array_types()):
                yield value
    for param in part.params():
        yield param.array


def _state_bytes(
    optimizer: chainer.GradientMethod | None, parameters: Iterable[chainer.Parameter]
) -> int:
    """Returns what an update needs beside parameters and gradients like them.

    The state of an optimizer is made for one parameter at a time.
    """
    total = 0
    for param in parameters:
        if param.dtype == np.float16:
            # Gradients of microbatches are added up in float32.
            total += 4 * param.size
        if optimizer is None:
            continue
        if hasattr(optimizer, "update_bytes"):
            # MixedPrecision, which has more than its rules' state.
            total += optimizer.update_bytes(param)
            continue
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
