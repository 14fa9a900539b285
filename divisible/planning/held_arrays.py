"""The arrays that layers hold from forward to backward, each counted once.

Several layers may hold an array that passes between them: the function that made it,
the next one, which retains its input, or a skip connection. The array counts for the
first of them, so that the shares of layers add up to the bytes of a stage::

    x --Linear--> y0 --ReLU--> y1 --Linear--> y2
    |             |            |              |
    Linear        nobody       ReLU, and      nobody, unless a stage ends here
                               Linear too

Arrays may be measured ones, or have nothing but a shape (`shape_arrays`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import chainer

from divisible.backward.tensors import to_tensor
from divisible.communication.signatures import Tensors
from divisible.layer_texts import title
from divisible.model import Divisible
from divisible.planning.retained_arrays import (
    BufferSet,
    is_rounded,
    retained_arrays,
    rounded_buffers,
)
from divisible.skips import last_users


class LayerBytes(NamedTuple):
    """The bytes of the arrays of one layer, by names of `LayerCost`."""

    activation_bytes: int
    activation_saved_bytes: int = 0
    boundary_output_bytes: int = 0
    output_bytes: int = 0
    output_saved_bytes: int = 0
    passing_bytes: int = 0
    skip_bytes: int = 0


class HeldArrays:
    """Counts the arrays of one layer after the other.

    Args:
        model (Divisible): The undivided model.
        inputs: Inputs of the model.

    Attributes:
        inputs: Inputs of the next layer: the outputs of the layer counted last.
        layers (list of LayerBytes): The bytes of each layer. The next layer may change
            those of the last one.
        held_again (list of int): Bytes that each layer holds while it is run again.
    """

    def __init__(self, model: Divisible, inputs: Tensors) -> None:
        self._model = model
        self.inputs = inputs
        self.layers: list[LayerBytes] = []
        self.held_again: list[int] = []
        # Arrays that were counted already, on their way from layer to layer.
        self._counted = BufferSet(tensor.array for tensor in inputs)
        self._skips = _Skips(model)
        self._brought = 0

    def skipped(self) -> dict[str, Tensors]:
        """Returns the values that skip connections bring to the next layer, by name."""
        found = self._skips.take(len(self.layers), self._counted)
        self._brought = _nbytes(found.values())
        return found

    def add(self, part: Divisible, inputs: Tensors, results: tuple) -> Tensors:
        """Counts the arrays of the next layer.

        Args:
            part: The layer.
            inputs: Its inputs, with those over skip connections.
            results: Its outputs, as it returned them.

        Returns:
            The outputs as tensors.
        """
        position = len(self.layers)
        source = f"layer {position} ({title(self._model.model_layers[position])})"
        outputs = tuple(to_tensor(y, f"{source} returned") for y in results)
        rounded = rounded_buffers(results, [x.array for x in (*inputs, *outputs)])
        own, loose = self._count(part, position, inputs, results, rounded)
        uncounted = self._skips.hand_over(position, outputs, self._counted)
        handed_over = _Size.of(uncounted, rounded)
        self.layers.append(
            LayerBytes(
                own.n_bytes + handed_over.n_bytes,
                own.saved + handed_over.saved,
                max(0, loose - handed_over.n_bytes),
                _nbytes([outputs]) + self._skips.nbytes,
                _saved([outputs]) + self._skips.saved,
                self._skips.nbytes,
                self._brought,
            )
        )
        self.inputs = outputs
        return outputs

    def of_loss(
        self, outputs: tuple, targets: Iterable[Any], parameters: Iterable[Any]
    ) -> LayerBytes:
        """Returns the bytes of the arrays of the loss.

        The last layer's outputs are among them, if the loss holds them and that layer
        does not.

        Args:
            outputs: Outputs of the loss.
            targets: Arrays of targets.
            parameters: Arrays of the loss's own parameters.
        """
        held = BufferSet(retained_arrays(outputs)) - BufferSet(targets)
        held -= self._counted | BufferSet(parameters)
        size = _Size.of(held, rounded_buffers(outputs))
        return LayerBytes(size.n_bytes, size.saved)

    def together(self) -> Iterator[tuple[int, int]]:
        """Yields positions of layers that are recomputed, and bytes held meanwhile.

        Neighbouring layers that are recomputed hold the arrays of all of them, during
        the backward of each.
        """
        runs = itertools.groupby(
            range(len(self.layers)), self._model.recomputed.__getitem__
        )
        for run in [list(run) for is_recomputed, run in runs if is_recomputed]:
            n_bytes = sum(self.held_again[i] for i in run)
            yield from ((i, n_bytes) for i in run)

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
        held = BufferSet(retained_arrays(results)) - persistents(part)
        returned = BufferSet(map(chainer.as_array, results))
        is_recomputed = self._model.recomputed[position]
        self.held_again.append(((held | returned) - before).nbytes)
        if is_recomputed:
            # Between forward and backward only the inputs of the first layer are held.
            begins = position == 0 or not self._model.recomputed[position - 1]
            held = before if begins else BufferSet()
        if self.layers:
            # Arrays that the layer before returned and did not hold, but this one does.
            late = _Size.of((held & before) - self._counted, rounded)
            last = self.layers[-1]
            unheld = last.boundary_output_bytes - late.n_bytes
            self.layers[-1] = last._replace(
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
    """The tensors that skip connections carry past the next layer.

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


def as_function(part: Divisible, skipped: dict[str, Tensors]) -> Callable:
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


def persistents(part: Divisible) -> BufferSet:
    """Returns the arrays that a layer has independent of its inputs."""

    def arrays() -> Iterator[Any]:
        for link in part.links():
            values = (vars(link)[name] for name in link._persistent)
            yield from (v for v in values if isinstance(v, chainer.get_array_types()))
        yield from (param.array for param in part.params())

    return BufferSet(arrays())


def _nbytes(messages: Iterable[Tensors]) -> int:
    return sum(tensor.array.nbytes for tensors in messages for tensor in tensors)


def _saved(messages: Iterable[Sequence[Any]]) -> int:
    arrays = (tensor.array for tensors in messages for tensor in tensors)
    return sum(a.nbytes // 2 for a in arrays if is_rounded(a.dtype, a.nbytes))
