"""Measures layer after layer: seconds, and the bytes that `held_arrays` counts."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import chainer

from divisible.carried_state import carrying
from divisible.communication.signatures import Tensors
from divisible.dtypes import in_loss_dtype
from divisible.layer_texts import place_of
from divisible.minibatch import value_and_count
from divisible.model import Divisible
from divisible.planning.disk import GATHERED, streamable_bytes
from divisible.planning.held_arrays import HeldArrays, as_function, persistents
from divisible.planning.layer_cost import LayerCost
from divisible.planning.optimizer_state import state_bytes
from divisible.planning.retained_arrays import BufferSet, holds_elsewhere
from divisible.planning.timed_phases import Phases


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
        self._optimizer = optimizer
        self._repeat = repeat
        # The first axis of the model's first input; 0 for a single number.
        self._n_samples = (*inputs[0].array.shape, 0)[0]
        self._costs: list[LayerCost] = []
        self._held = HeldArrays(model, inputs)
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
        skipped = self._held.skipped()
        inputs = tuple(itertools.chain(self._held.inputs, *skipped.values()))
        runs = Phases(as_function(part, skipped), part.params, inputs)
        # Parameters may be made in this first run.
        runs.forward()
        outputs = self._held.add(part, inputs, runs.outputs)
        stays_in_memory = holds_elsewhere(runs.outputs)
        runs.backward_input()
        pending = BufferSet(runs.pending.arrays()) - persistents(part)
        runs.backward_weight()
        cost = self._cost(
            runs,
            # A layer may have parameters that its forward does not use, and never
            # makes.
            list(part.params(include_uninit=False)),
            pending_bytes=pending.nbytes,
            streamable_bytes=streamable_bytes(part.links()),
            gathered_bytes=streamable_bytes(part.links(), GATHERED),
            takes_groups=self._takes_groups(part, (*inputs, *outputs)),
            stays_in_memory=stays_in_memory and not self._model.recomputed[position],
            name=self._model.model_layers[position],
            place=place_of(part[0]),
        )
        self.mean_seconds += runs.mean_seconds
        self.scatter_seconds += runs.scatter_seconds
        self._costs.append(cost)

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

        runs = Phases(loss, parameters, self._held.inputs)
        runs.forward()
        (y, *others) = runs.outputs
        if others or not isinstance(y, chainer.Variable):
            raise TypeError(f"lossfun must return one variable, not {runs.outputs}")
        made = [param for param in parameters() if param.is_initialized]
        held = self._held.of_loss(
            runs.outputs, targets, (param.array for param in made)
        )
        runs.backward_input()
        runs.backward_weight()
        name = getattr(lossfun, "__qualname__", type(lossfun).__name__)
        return self._cost(runs, made, **held._asdict(), name=name)

    def costs(self) -> list[LayerCost]:
        """Returns the costs of all layers, including second forwards."""
        result = [
            dataclasses.replace(cost, **held._asdict())
            for cost, held in zip(self._costs, self._held.layers)
        ]
        for i, together in self._held.together():
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
