"""Runs the phases of a microbatch by themselves, with a stopwatch or a memory meter."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterable
from typing import Any, Callable

import chainer

import chainer_kernels
from chainer_kernels import kept_weights
from chainer_kernels.prepared_weights import scope_for
from divisible.backward import backprop
from divisible.backward.tensors import from_tensor
from divisible.backward.weight_gradients import WeightGradients
from divisible.communication.signatures import Tensors
from divisible.planning.stopwatch import memory_tracer, stopwatch

_NAMES = ("forward", "backward_input", "backward_weight")


class Phases:
    """Forward, I and W of one microbatch, repeatedly.

    Args:
        function: Layer or loss to run.
        parameters: Returns the parameters of the function.
        inputs: Inputs of the function.

    Attributes:
        outputs: Outputs of the last forward, until its I.
        input_gradients: Gradients of the inputs from the last I, held as a stage holds
            them until they are sent.
        pending: Pending weight gradients of the last I; ``None`` after their W.
        mean_seconds (float): Mean seconds of all phases together; see :meth:`seconds`.
        prepared_bytes (int): Bytes of prepared weights that :meth:`seconds` has kept.
        scatter_seconds (float): Scatter of the runs of all phases together: half of the
            runs are this near to their median, or nearer.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Callable[[], Iterable[chainer.Parameter]],
        inputs: Tensors,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._parameters = parameters
        self._weights = WeightGradients(parameters)
        # Inputs of the microbatch; gradients of the outputs, the same for all
        # microbatches.
        self._values: list[Any] = []
        self._gradients: list[Any] | None = None
        self.mean_seconds = self.scatter_seconds = 0.0
        self.prepared_bytes = 0
        self.outputs: tuple = ()
        self.input_gradients: Any = ()
        self.pending: backprop.PendingWeightGradients | None = None

    def forward(self) -> None:
        """Runs the forward, and stores its outputs."""
        self._values = [from_tensor(tensor) for tensor in self._inputs]
        outputs = self._function(*self._values)
        self.outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    def backward_input(self) -> None:
        """Runs I, and stores the pending weight gradients and the input gradients."""
        variables = [x for x in self._values if isinstance(x, chainer.Variable)]
        outputs = [y for y in self.outputs if isinstance(y, chainer.Variable)]
        if self._gradients is None:
            # The first forward has made all parameters.
            self._weights.begin()
            self._gradients = list(map(_gradient, outputs))
        self._values, self.outputs = [], ()
        self.input_gradients, self.pending = backprop.backward_input(
            variables, outputs, self._gradients, self._weights
        )

    def backward_weight(self) -> None:
        """Runs W, which adds to the gradients of the earlier runs."""
        self.pending.run()
        self.pending = None

    def seconds(self, device: Any, repeat: int) -> dict[str, float]:
        """Returns the median seconds of each phase, after a first run."""
        seconds = stopwatch(device)
        times: dict[str, list[float]] = {name: [] for name in _NAMES}
        # Garbage collection in the middle would be measured as well.
        enabled = gc.isenabled()
        gc.disable()
        try:
            # Microbatches of a minibatch share prepared weights, too.
            with scope_for(self._parameters())():
                for _ in range(repeat + 1):
                    for name, values in times.items():
                        values.append(seconds(getattr(self, name)))
                self.prepared_bytes = kept_weights.n_bytes()
        finally:
            if enabled:
                gc.enable()
        timed = {name: values[1:] for name, values in times.items()}
        self.mean_seconds = sum(map(statistics.fmean, timed.values()))
        runs = [sum(run) for run in zip(*timed.values())]
        middle = statistics.median(runs)
        self.scatter_seconds = statistics.median(abs(run - middle) for run in runs)
        return {name: statistics.median(values) for name, values in timed.items()}

    def workspace(self, device: Any) -> int:
        """Returns the most bytes that a phase needs besides what the layer holds.

        In a backward these are the gradients that come in and go out, too: they are
        there while the layer runs, between those of its neighbours.
        """
        most = 0
        with memory_tracer(device) as tracer:
            for name in _NAMES:
                before = tracer.now()
                getattr(self, name)()
                if name == "backward_input":
                    given = sum(g.nbytes for g in self._gradients if g is not None)
                    most = max(most, tracer.peak() - (before - given))
                else:
                    most = max(most, tracer.peak() - max(before, tracer.now()))
        return most


def _gradient(y: chainer.Variable) -> Any:
    """Returns a gradient for an output, or None if it can have none.

    The gradient has the memory order of the output, as gradients of our kernels do.
    Gradients of Chainer's own functions are in C order, even where a convolution's
    outputs have their channels last, with which a batch normalization is slower.
    """
    if not y.requires_grad or y.dtype.kind != "f":
        return None
    order = "K" if chainer_kernels.is_enabled() else "C"
    return chainer.backend.get_array_module(y.array).ones_like(y.array, order=order)
