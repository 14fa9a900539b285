"""A run of a stage's layers, computed and recomputed as one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable

import chainer

from divisible import Divisible
from divisible.backward.completion import Completion
from divisible.backward.graph_walk import GraphWalk
from divisible.backward.joint_weights import run_weights_together
from divisible.backward.tensors import (
    attached,
    copied,
    detached,
    from_messages,
    leaves,
    to_messages,
)
from divisible.backward.weight_gradients import WeightGradients
from divisible.communication.signatures import Tensor, Tensors
from divisible.random_streams import LayerStreams
from pipeline.stages.groups import Group
from pipeline.stages.held import Graph, Inputs, Persistents
from pipeline.stages.loss import Loss
from pipeline.stages.stage_skips import skips_across

_LAST_DICTIONARY = (
    "the last layer of the model returned a dictionary: return its values as a tuple,"
    " in the order in which lossfun takes them"
)


class Segment:
    """Layers between which nothing is cut.

    Each microbatch has a graph of its own, held from its forward to its backward. Of
    layers that are recomputed, only the inputs are held until the forward runs again.

    Args:
        layers (Divisible): The layers of this segment.
        weight_gradients (WeightGradients): Collects the gradients of parameters.
        loss (Loss or None): Loss behind the layers, at the end of the model.
        is_recomputed (bool): Whether the layers are marked to be recomputed.
        again: ``again(microbatch)`` returns the context for a forward that runs again.
        stage (Divisible): The stage that the layers belong to. Values that leave the
            stage are messages of tensors; values that stay in it may also be lists,
            dictionaries and constants.
        leaving: Names of the skip connections that leave the stage; by default all that
            a layer after the stage pops.
    """

    def __init__(
        self,
        layers: Divisible,
        weight_gradients: WeightGradients,
        loss: Loss | None,
        is_recomputed: bool,
        again: Callable[[int], AbstractContextManager],
        stage: Divisible | None = None,
        leaving: Collection[str] | None = None,
    ) -> None:
        stage = layers if stage is None else stage
        self.layers = layers
        end = stage.layer_range[1]
        self._ends_stage = layers.layer_range[1] == end
        self._last = layers.layer_range[1] - 1
        self._n_model_layers = len(layers.model_layers)
        self.loss = loss
        self.is_recomputed = is_recomputed
        self._weight_gradients = weight_gradients
        self._again = again
        self.takes, self.hands_over = skips_across(layers, leaving, end)
        self._leaving = skips_across(stage, leaving, end)[1].keys()
        #: The graph or the inputs held between forward and backward, by microbatch.
        self.held: dict[int, Graph | Inputs] = {}
        self._pending: dict[int, GraphWalk] = {}

    def begin(self) -> None:
        """Drops what an unfinished minibatch left."""
        self.held.clear()
        self._pending.clear()

    def forward(
        self,
        microbatch: int,
        inputs: Tensors,
        skipped: Mapping[str, Tensors],
        is_recomputed: bool = False,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the layers on one microbatch.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            inputs: The tensors of the layer before.
            skipped: Tensors that skip connections bring, by name.
            is_recomputed (bool): Whether to hold only the inputs, also of layers
                without a mark.

        Returns:
            The outputs as tensors, empty if the loss has used them; and the tensors
            that skip connections take, by name.
        """
        trains = chainer.config.enable_backprop
        if trains and (is_recomputed or self.is_recomputed) and self._is_sized():
            persistents = Persistents(self._links())
            self.held[microbatch] = Inputs(inputs, skipped, persistents)
            # The first layer may change arrays in place, which are needed again.
            skipped = {name: copied(tensors) for name, tensors in skipped.items()}
            # Chainer's own sign that a forward will run again, as F.forget sets it.
            again = chainer.using_config("_will_recompute", True)
            with chainer.no_backprop_mode(), again:
                graph = self._run(microbatch, copied(inputs), skipped)
        else:
            graph = self._run(microbatch, inputs, skipped)
            if trains:
                self.held[microbatch] = graph
        outputs: Tensors = ()
        if not self._has_loss():
            what = "the last layer of this one returned"
            outputs = _passed(graph.outputs, self._ends_stage, what, self._last)
        return outputs, {
            name: _passed(
                graph.handed_over[name],
                name in self._leaving,
                f"stash({name!r}) handed over",
                position,
            )
            for name, position in self.hands_over.items()
        }

    def holds(self, microbatch: int) -> bool:
        """Whether the graph or the inputs of a microbatch are held for its backward."""
        return microbatch in self.held

    def recompute(self, microbatch: int) -> None:
        """Runs the forward of one microbatch again, if only its inputs are held."""
        held = self.held.get(microbatch)
        if isinstance(held, Inputs):
            with self._again(microbatch), held.persistents.put_back():
                graph = self._run(microbatch, held.inputs, held.skipped)
            self.held[microbatch] = graph

    def _is_sized(self) -> bool:
        """Whether all parameters and running averages have been made.

        The forward that makes them draws initial values from the random stream of their
        layer. Run again, it would draw other numbers for dropout.
        """
        params = [*self.layers.params(), *(self.loss.params() if self.loss else ())]
        return all(param.is_initialized for param in params) and all(
            getattr(link, "avg_mean", 0) is not None for link in self._links()
        )

    def _links(self) -> Iterator[chainer.Link]:
        """Yields all links that the forward may call."""
        yield from self.layers.links()
        if self.loss is not None:
            for _, link in self.loss.namedlinks():
                yield link

    def _has_loss(self) -> bool:
        return self.loss is not None and self.loss.is_wanted

    def _run(
        self, microbatch: int, inputs: Tensors, skipped: Mapping[str, Tensors]
    ) -> Graph:
        values = attached(from_messages(inputs))
        skips = {name: attached(from_messages(skipped[name])) for name in self.takes}
        is_group = isinstance(microbatch, Group)
        call = microbatch.call if is_group else None
        y, stashed = self.layers.run(values, skips, call, chains=True)
        outputs = _as_tuple(y)
        if self._ends_stage and not outputs:
            # An empty message stands for a microbatch without samples.
            raise _at(
                self._last,
                TypeError("the last layer of this stage returned an empty tuple"),
            )
        if self._last + 1 == self._n_model_layers:
            for output in outputs:
                if isinstance(output, dict):
                    raise _at(self._last, TypeError(_LAST_DICTIONARY))
        if self._has_loss():
            with LayerStreams() as streams:
                # The random stream of the loss follows the last layer's.
                streams.enter(self._n_model_layers)
                if is_group:
                    place = self._n_model_layers
                    outputs = microbatch.losses(self.loss, outputs, place)
                else:
                    outputs = (self.loss(microbatch, outputs),)
        handed_over = {name: _as_tuple(stashed[name]) for name in self.hands_over}
        return Graph(values, skips, outputs, handed_over)

    def backward(
        self,
        microbatch: int,
        gradients: list[Tensor],
        skip_gradients: dict[str, Tensors],
        split: bool = False,
    ) -> tuple[list[Tensor], dict[str, Tensors]]:
        """Runs the backward of one microbatch, and first its recomputation, if due.

        Args:
            microbatch (int): Position of the microbatch in the minibatch.
            gradients: One tensor per output; ignored where the loss starts the
                backward. Emptied, so that an array that nobody else has is freed when
                it is no longer needed.
            skip_gradients: Gradients of the values that were handed over, by name.
                Emptied as well.
            split (bool): Whether to leave the weight gradients to
                :meth:`backward_weight`.

        Returns:
            One tensor per input: its gradient, or ``None`` as its array where there is
            none; and the gradients of the tensors that skip connections brought, by
            name.
        """
        self.recompute(microbatch)
        graph = self.held.pop(microbatch)
        if self.loss is not None:
            is_group = isinstance(microbatch, Group)
            each = microbatch.numbers if is_group else (microbatch,)
            pairs = zip(each, graph.outputs)
            gradients[:] = [Tensor(self.loss.gradient(*pair)) for pair in pairs]
        inputs, skipped = graph.inputs, graph.skipped
        variables = [
            x
            for x in leaves([inputs, *skipped.values()])
            if isinstance(x, chainer.Variable)
        ]
        outputs, output_gradients = _ends(graph, gradients, skip_gradients)
        # From here on the walk alone has the outputs and their gradients.
        gradients.clear()
        skip_gradients.clear()
        del graph
        walk = GraphWalk(self._weight_gradients, defer=split)
        found = walk.run_activations(variables, outputs, output_gradients)
        if split:
            self._pending[microbatch] = walk
        else:
            walk.run_between_weights()
        by_variable = dict(zip(map(id, variables), found))

        def in_places(values: Sequence[Any]) -> list[Tensor]:
            return [Tensor(by_variable.get(id(x))) for x in leaves(values)]

        return in_places(inputs), {
            name: tuple(in_places(values)) for name, values in skipped.items()
        }

    def pending_arrays(self) -> Iterator[Any]:
        """Yields the arrays held for weight gradients, some twice, with parameters."""
        for walk in self._pending.values():
            yield from walk.held_arrays()

    def backward_weight(self, microbatches: Sequence[int]) -> None:
        """Adds the weight gradients that split backwards left out."""
        # A microbatch without samples has none.
        walks = [self._pending.pop(i) for i in microbatches if i in self._pending]
        if len(walks) == 1:
            walks[0].run_weights()
        elif walks:
            run_weights_together(walks, self._weight_gradients)


def segments_of(
    layers: Divisible,
    weight_gradients: WeightGradients,
    loss: Loss | None,
    again: Callable[[int], AbstractContextManager],
    runs: Sequence[tuple[int, int]] = (),
    leaving: Collection[str] | None = None,
) -> list[Segment]:
    """Cuts the layers of a stage where runs of recomputed layers begin and end.

    Neighbours with a mark to recompute them make a run as well.

    Args:
        layers (Divisible): The layers.
        weight_gradients (WeightGradients): Collects the gradients of parameters.
        loss (Loss or None): Loss behind the layers, at the end of the model.
        again: Context for a forward that runs again; see :class:`Segment`.
        runs: Other runs, each by its first position and the one after its last.
        leaving: Names of the skip connections that leave the stage; see
            :class:`Segment`.
    """
    segments = []
    start, end = layers.layer_range
    numbers = {i: n for n, run in enumerate(runs, 2) for i in range(*run)}
    marks = enumerate(layers.recomputed, start)
    labels = [numbers.get(position, int(mark)) for position, mark in marks]
    for label, run in itertools.groupby(labels):
        stop = start + len(list(run))
        part, its_loss = layers.view(start, stop), loss if stop == end else None
        segments.append(
            Segment(part, weight_gradients, its_loss, label > 0, again, layers, leaving)
        )
        start = stop
    return segments


def completing(
    segments: Sequence[Segment],
    weight_gradients: WeightGradients,
    complete: Callable[[chainer.Parameter], None],
) -> Iterator[Segment]:
    """Yields the segments of a stage, the last one first, in its last backward.

    Args:
        segments: The segments.
        weight_gradients (WeightGradients): Collects the gradients of parameters.
        complete: Called with each parameter whose gradient a backward completes.
    """
    completion = Completion(complete)
    weight_gradients.completion = completion
    try:
        for i, segment in reversed([*enumerate(segments)]):
            # Earlier segments may use the same parameters.
            before = [each.layers.params() for each in segments[:i]]
            completion.leave_out(itertools.chain(*before))
            yield segment
    finally:
        weight_gradients.completion = None


def _ends(
    graph: Graph, gradients: Sequence[Tensor], skip_gradients: Mapping[str, Tensors]
) -> tuple[list[chainer.Variable], list[Any]]:
    """Returns the variables at which a backward begins, and their gradients."""
    outputs, output_gradients = [], []
    ends = [(graph.outputs, gradients)]
    ends += [(ys, skip_gradients[name]) for name, ys in graph.handed_over.items()]
    for ys, tensors in ends:
        for y, tensor in zip(leaves(ys), tensors):
            if isinstance(y, chainer.Variable):
                outputs.append(y)
                output_gradients.append(tensor.array)
    return outputs, output_gradients


def _as_tuple(y: Any) -> tuple:
    return y if isinstance(y, tuple) else (y,)


def _passed(ys: tuple, is_message: bool, source: str, position: int) -> tuple:
    """Returns a layer's outputs in the form that the next segment takes."""
    try:
        if is_message:
            return to_messages(ys, source)
        return tuple(map(detached, ys))
    except TypeError as error:
        raise _at(position, error) from None


def _at(position: int, error: Exception) -> Exception:
    """Returns an error, marked with a layer's position in the undivided model."""
    error.layer_position = position
    return error
