"""Measures layer after layer, and counts each array that layers hold once.

Several layers may hold an array that passes between them: the function that made it,
the next one, which retains its input, or a skip connection. The array counts for the
first of them, so that the shares of layers add up to the bytes of a stage::

    x --Linear--> y0 --ReLU--> y1 --Linear--> y2
    |             |            |              |
    Linear        nobody       ReLU, and      nobody, unless a stage ends here
                               Linear too
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import chainer

from divisible.backward.tensors import to_tensor
from divisible.carried_state import carrying
from divisible.communication.signatures import Tensors
from divisible.dtypes import in_loss_dtype
from divisible.layer_texts import place_of, title
from divisible.minibatch import value_and_count
from divisible.model import Divisible
from divisible.planning.disk import GATHERED, streamable_bytes
from divisible.planning.layer_cost import LayerCost
from divisible.planning.optimizer_state import state_bytes
from divisible.planning.retained_arrays import (
    BufferSet,
    holds_elsewhere,
    is_rounded,
    retained_arrays,
    rounded_buffers,
)
from divisible.planning.timed_phases import Phases
from divisible.skips import last_users


class LayerMeter:
    """Measures the layers of a model, each copied and run by itself.

    Args:
        model (Divisible): The undivided model.
        inputs: Inputs of the model.
        optimizer: The optimizer in use, if any.
        repeat (int): Number of measurements of each layer.

    Attributes:
        mean_seconds (float): Mean seconds of all layers together; their costs are
            medians.
        scatter_seconds (float): Scatter of the layers' timings, all together: half of
            the timings of a layer are this near to their median, or nearer.
    """

    def __init__(
        self,
        model: Divisible,
        inputs: Tensors,
        optimizer: chainer.GradientMethod | None,
        repeat: int,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._optimizer = optimizer
        self._repeat = repeat
        # The first axis of the model's first input; 0 for a single number.
        self._n_samples = (*inputs[0].array.shape, 0)[0]
        self._costs: list[LayerCost] = []
        #: Bytes that each layer holds while it is run again.
        self._held_again: list[int] = []
        # Arrays that were counted already, on their way from layer to layer.
        self._counted = BufferSet(tensor.array for tensor in inputs)
        self._skips = _Skips(model)
        self.mean_seconds = self.scatter_seconds = 0.0

    @property
    def seconds(self) -> float:
        """The sum of the layers' medians, in seconds."""
        return sum(cost.seconds for cost in self._costs)

    def measure(self, position: int) -> None:
        """Measures the next layer.

        Args:
            position (int): Position of the layer.
        """
        part = self._model.divide(position, position + 1, mode="copy")
        skipped = self._skips.take(position, self._counted)
        inputs = tuple(itertools.chain(self._inputs, *skipped.values()))
        runs = Phases(_as_function(part, skipped), part.params, inputs)
        # Parameters may be made in this first run.
        runs.forward()
        name = self._model.model_layers[position]
        source = f"layer {position} ({title(name)}) returned"
        outputs = tuple(to_tensor(y, source) for y in runs.outputs)
        rounded = rounded_buffers(runs.outputs, [x.array for x in (*inputs, *outputs)])
        own, loose = self._count(part, position, inputs, runs.outputs, rounded)
        uncounted = self._skips.hand_over(position, outputs, self._counted)
        handed_over = _Size.of(uncounted, rounded)
        stays_in_memory = holds_elsewhere(runs.outputs)
        del rounded, uncounted
        runs.backward_input()
        pending = BufferSet(runs.pending.arrays()) - _persistents(part)
        runs.backward_weight()
        cost = self._cost(
            runs,
            # A layer may have parameters that its forward does not use, and never
            # makes.
            list(part.params(include_uninit=False)),
            output_bytes=_nbytes([outputs]) + self._skips.nbytes,
            output_saved_bytes=_saved([outputs]) + self._skips.saved,
            passing_bytes=self._skips.nbytes,
            skip_bytes=_nbytes(skipped.values()),
            activation_bytes=own.n_bytes + handed_over.n_bytes,
            activation_saved_bytes=own.saved + handed_over.saved,
            boundary_output_bytes=max(0, loose - handed_over.n_bytes),
            pending_bytes=pending.nbytes,
            streamable_bytes=streamable_bytes(part.links()),
            gathered_bytes=streamable_bytes(part.links(), GATHERED),
            takes_groups=self._takes_groups(part, (*inputs, *outputs)),
            stays_in_memory=stays_in_memory and not self._model.recomputed[position],
            name=name,
            place=place_of(part[0]),
        )
        self.mean_seconds += runs.mean_seconds
        self.scatter_seconds += runs.scatter_seconds
        self._costs.append(cost)
        self._inputs = outputs

    def _takes_groups(self, part: Divisible, tensors: Tensors) -> bool:
        """Returns whether a layer may take several microbatches as one."""
        n = self._n_samples
        return not any(carrying(part)) and all(
            n and tensor.array.ndim and not len(tensor.array) % n for tensor in tensors
        )

    def measure_loss(self, lossfun: Callable, targets: tuple) -> LayerCost:
        """Measures the loss, which follows the last layer.

        Args:
            lossfun: Loss function ``lossfun(*outputs, *targets)``, which returns a
                scalar variable, or the variable and the number of samples that it is a
                mean of.
            targets: Arrays on any device.
        """
        targets = tuple(map(self._model.device.send, targets))
        parameters: Callable[[], Iterable[chainer.Parameter]] = tuple
        if isinstance(lossfun, chainer.Link):
            lossfun = copy.deepcopy(lossfun)
            parameters = lossfun.params

        def loss(*outputs: Any) -> chainer.Variable:
            returned = lossfun(*map(in_loss_dtype, outputs), *targets)
            return value_and_count(returned)[0]

        runs = Phases(loss, parameters, self._inputs)
        runs.forward()
        (y, *others) = runs.outputs
        if others or not isinstance(y, chainer.Variable):
            raise TypeError(f"lossfun must return one variable, not {runs.outputs}")
        made = [param for param in parameters() if param.is_initialized]
        # The last layer's outputs are part of it, if the loss holds them and that layer
        # does not.
        held = BufferSet(retained_arrays(runs.outputs)) - BufferSet(targets)
        held -= self._counted | BufferSet(param.array for param in made)
        size = _Size.of(held, rounded_buffers(runs.outputs))
        del held
        runs.backward_input()
        runs.backward_weight()
        name = getattr(lossfun, "__qualname__", type(lossfun).__name__)
        return self._cost(
            runs,
            made,
            activation_bytes=size.n_bytes,
            activation_saved_bytes=size.saved,
            name=name,
        )

    def costs(self) -> list[LayerCost]:
        """Returns the costs of all layers, including second forwards.

        Neighbouring layers that are recomputed hold the arrays of all of them, during
        the backward of each.
        """
        result = list(self._costs)
        marks = self._model.recomputed
        runs = itertools.groupby(range(len(result)), marks.__getitem__)
        for run in [list(run) for is_recomputed, run in runs if is_recomputed]:
            together = sum(self._held_again[i] for i in run)
            for i in run:
                result[i] = dataclasses.replace(
                    result[i],
                    backward_input=result[i].backward_input + result[i].forward,
                    workspace_bytes=result[i].workspace_bytes + together,
                )
        return result

    def _cost(
        self, runs: Phases, parameters: Sequence[chainer.Parameter], **known: Any
    ) -> LayerCost:
        device = self._model.device
        seconds = runs.seconds(device, self._repeat)
        return LayerCost(
            **seconds,
            **known,
            prepared_bytes=runs.prepared_bytes,
            parameter_bytes=sum(param.array.nbytes for param in parameters),
            optimizer_bytes=state_bytes(self._optimizer, parameters),
            workspace_bytes=runs.workspace(device),
            n_parameters=sum(param.array.size for param in parameters),
        )

    def _count(
        self,
        part: Divisible,
        position: int,
        inputs: Tensors,
        results: tuple,
        rounded: BufferSet,
    ) -> tuple[_Size, int]:
        """Counts the arrays of a layer that were not counted before.

        Args:
            part: The layer.
            position: Position of the layer.
            inputs: Its inputs, with those over skip connections.
            results: Its outputs.
            rounded: Buffers that may wait in bfloat16.

        Returns:
            The size of what the layer holds between forward and backward, and the bytes
            of outputs that it does not hold.
        """
        before = BufferSet(tensor.array for tensor in inputs)
        held = BufferSet(retained_arrays(results)) - _persistents(part)
        returned = BufferSet(map(chainer.as_array, results))
        is_recomputed = self._model.recomputed[position]
        self._held_again.append(((held | returned) - before).nbytes)
        if is_recomputed:
            # Between forward and backward only the inputs of the first layer are held.
            begins = position == 0 or not self._model.recomputed[position - 1]
            held = before if begins else BufferSet()
        if self._costs:
            # Arrays that the layer before returned and did not hold, but this one does.
            late = _Size.of((held & before) - self._counted, rounded)
            last = self._costs[-1]
            unheld = last.boundary_output_bytes - late.n_bytes
            self._costs[-1] = dataclasses.replace(
                last,
                activation_bytes=last.activation_bytes + late.n_bytes,
                activation_saved_bytes=last.activation_saved_bytes + late.saved,
                boundary_output_bytes=max(0, unheld),
            )
        own = _Size.of(held - before, rounded)
        self._counted |= held
        # Inputs that are passed on, if they were not counted before: views of them, for
        # example.
        loose = BufferSet() if is_recomputed else returned - self._counted
        self._counted &= returned
        return own, loose.nbytes


class _Size(NamedTuple):
    """The size of some arrays.

    Attributes:
        n_bytes: Their bytes.
        saved: Bytes that are saved where those that may be rounded wait in bfloat16.
    """

    n_bytes: int
    saved: int

    @classmethod
    def of(cls, buffers: BufferSet, rounded: BufferSet) -> _Size:
        """Returns the size of buffers, some of which may be rounded."""
        return cls(buffers.nbytes, (buffers & rounded).nbytes // 2)


class _Skips:
    """The tensors that skip connections carry past the layer that is measured.

    Args:
        model: The undivided model.
    """

    def __init__(self, model: Divisible) -> None:
        self._ends = model.skips
        self._last_users = last_users(model.skips)
        self._carried: dict[str, tuple[Tensors, BufferSet]] = {}

    def take(self, position: int, counted: BufferSet) -> dict[str, Tensors]:
        """Returns the values that a layer pops, by name."""
        taken = {}
        for skip in self._ends:
            if skip.pop == position:
                taken[skip.name], counted_before = self._carried[skip.name]
                counted |= counted_before
                if position in self._last_users:
                    del self._carried[skip.name]
        return taken

    def hand_over(
        self, position: int, outputs: Tensors, counted: BufferSet
    ) -> BufferSet:
        """Stores the values that a layer stashes, and returns the arrays that are new.

        Args:
            position: Position of the layer.
            outputs: Outputs of the layer.
            counted: Arrays among them that were counted before; changed to all of them.

        Returns:
            The arrays that were not counted before. A stage holds them from forward to
            backward, whether a function of its own retains them or not.
        """
        uncounted = BufferSet()
        for skip in self._ends:
            if skip.stash == position:
                uncounted |= BufferSet(tensor.array for tensor in outputs) - counted
                counted |= uncounted
                self._carried[skip.name] = outputs, counted & counted
        return uncounted

    @property
    def nbytes(self) -> int:
        """The bytes that cross a cut here besides the layer's output."""
        return _nbytes(tensors for tensors, _ in self._carried.values())

    @property
    def saved(self) -> int:
        """The part of these bytes that is saved where they wait in bfloat16."""
        return _saved(tensors for tensors, _ in self._carried.values())


def _as_function(part: Divisible, skipped: dict[str, Tensors]) -> Callable:
    """Returns a layer as a function of its inputs and, after them, of skips."""

    def run(*values: Any) -> Any:
        end = len(values) - sum(map(len, skipped.values()))
        rest = iter(values[end:])
        brought = {
            name: tuple(itertools.islice(rest, len(tensors)))
            for name, tensors in skipped.items()
        }
        y, _ = part.run(values[:end], brought)
        return y

    return run


def _nbytes(messages: Iterable[Tensors]) -> int:
    return sum(tensor.array.nbytes for tensors in messages for tensor in tensors)


def _saved(messages: Iterable[Tensors]) -> int:
    arrays = (tensor.array for tensors in messages for tensor in tensors)
    return sum(a.nbytes // 2 for a in arrays if is_rounded(a.dtype, a.nbytes))


def _persistents(part: Divisible) -> BufferSet:
    """Returns the arrays that a layer has independent of its inputs."""

    def arrays() -> Iterator[Any]:
        for link in part.links():
            values = (vars(link)[name] for name in link._persistent)
            yield from (v for v in values if isinstance(v, chainer.get_array_types()))
        yield from (param.array for param in part.params())

    return BufferSet(arrays())
