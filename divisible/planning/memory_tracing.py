"""Traces the memory of a model's layers, from shapes alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np
from chainer.utils import type_check

from chainer_kernels.catalogue import backward_of
from divisible.backward.graph_functions import (
    arrays_of,
    functions_behind,
    parameter_of,
)
from divisible.backward.tensors import from_tensor
from divisible.communication.signatures import Tensor
from divisible.dtypes import as_trainable, floating_dtypes, in_loss_dtype
from divisible.effects import effect_of
from divisible.layer_texts import place_of
from divisible.minibatch import as_arrays, value_and_count
from divisible.model import Divisible
from divisible.planning.held_arrays import HeldArrays, as_function, persistents
from divisible.planning.layer_memory import LayerMemory, ModelMemory
from divisible.planning.optimizer_state import check_optimizer, state_bytes
from divisible.planning.retained_arrays import BufferSet
from divisible.planning.shape_arrays import ShapeArray
from divisible.planning.shape_tracing import layer_copy, link_copy, shapes_only


def trace_memory(
    model: Divisible,
    x: Any,
    t: Any = None,
    lossfun: Callable | None = None,
    *,
    optimizer: chainer.GradientMethod | None = None,
) -> ModelMemory:
    """Returns the memory of each layer, from shapes alone.

    The code of the layers runs on arrays without numbers: no layer computes, and no
    parameter is made. So a model that was built in :func:`deferred_init`, larger than
    this host's memory, takes none. So do modules of PyTorch, as
    :class:`~torch_layers.TorchLayer`. Other functions that are not Chainer's own, or
    whose shapes depend on numbers, are unknown, and with them what follows;
    :func:`profile` measures such models.

    Args:
        model (Divisible): The undivided model.
        x (array or tuple of arrays): Input of the model, a microbatch; only shapes and
            dtypes are read, so ``np.empty`` suffices.
        t (array or tuple of arrays): Targets; without them, and without ``lossfun``,
            there is no loss.
        lossfun: Loss function, as for :func:`profile`.
        optimizer (chainer.GradientMethod): The optimizer in use, whose state counts.

    Returns:
        ModelMemory: The memory; printed, a table.

    Raises:
        TypeError: If ``model`` is not a ``Divisible``, or ``x`` or ``t`` are not
            arrays.
        ValueError: If ``model`` is a stage, has no layers or is on a GPU, or ``x`` or
            ``t`` have no samples.

    Example:
        >>> import chainer.links as L
        >>> from divisible import deferred_init
        >>> with deferred_init():
        ...     model = Divisible(L.Linear(50000, 20000), F.relu, L.Linear(20000, 10))
        >>> memory = trace_memory(model, np.empty((64, 50000), np.float32))
        >>> [layer.output for layer in memory.layers]
        ['(64, 20000) float32', '(64, 20000) float32', '(64, 10) float32']
        >>> from divisible.schedules import gpipe
        >>> memory.rank_bytes([0, 2, 3], gpipe(2, n_microbatches=4))
        [8100000000, 27200080]
    """
    if not isinstance(model, Divisible):
        raise TypeError(f"model must be a Divisible, not {type(model).__name__}")
    check_optimizer(optimizer)
    if model.layer_range != (0, len(model.model_layers)):
        raise ValueError(
            f"the layers {model.layer_range} are a part of a model: give the whole"
        )
    if not len(model):
        raise ValueError("the model has no layers: append some")
    if model.device.xp is not np:
        raise ValueError(
            f"the model is on {model.device}: trace it before model.to_device(...)"
        )
    dtypes = set() if model.casts_inputs else floating_dtypes(model)
    arrays = [as_trainable(array, dtypes) for array in _shapes("x", x)]
    # Before the rules, which are hooks as well.
    effects = [effect_of([layer]) for layer in model]
    tracer = _Tracer(model, tuple(map(Tensor, arrays)), optimizer)
    with shapes_only():
        for position, effect in enumerate(effects):
            tracer.trace(position, effect)
        has_loss = t is not None or lossfun is not None
        loss = None
        if has_loss and not tracer.unknown:
            lossfun = F.softmax_cross_entropy if lossfun is None else lossfun
            loss = tracer.loss(lossfun, () if t is None else _shapes("t", t))
    return ModelMemory(
        tracer.layers(),
        n_samples=len(arrays[0]),
        input_bytes=sum(array.nbytes for array in arrays),
        loss=loss,
        unknown=tracer.unknown,
    )


class _Tracer:
    """Traces the shapes of one layer after the other.

    Args:
        model: The undivided model.
        inputs: Inputs of the model, without numbers.
        optimizer: The optimizer in use, if any.

    Attributes:
        unknown: Why shapes are unknown from a layer on; empty if they are known.
    """

    def __init__(self, model: Divisible, inputs: tuple, optimizer: Any) -> None:
        self._model = model
        self._held = HeldArrays(model, inputs)
        self._optimizer = optimizer
        self._layers: list[dict[str, Any]] = []
        self.unknown = ""

    def trace(self, position: int, effect: str) -> None:
        """Traces the next layer; one whose shapes are unknown has parameters only.

        Args:
            position: Position of the layer.
            effect: Why a call of it may change something; empty if it may not.
        """
        part = layer_copy(self._model, position)
        known: dict[str, Any] = {}
        if not self.unknown:
            try:
                known = self._call(part, effect)
            except Exception as error:
                # Chainer's messages about shapes have several lines.
                reason = " ".join(str(error).split()) or type(error).__name__
                remedy = "Measure the layers, by divisible profile"
                if isinstance(error, type_check.InvalidType):
                    remedy = "Check the shape of the input"
                self.unknown = (
                    f"shapes are unknown from layer {position} on: {reason}. {remedy}"
                )
        self._layers.append(
            {
                "name": self._text(position),
                "place": place_of(part[0]),
                **_fixed(part.params(include_uninit=False), self._optimizer),
                **known,
            }
        )

    def loss(self, lossfun: Callable, targets: Sequence[Any]) -> LayerMemory | None:
        """Traces the loss; ``None`` if its shapes are unknown."""
        if isinstance(lossfun, chainer.Link):
            lossfun = link_copy(lossfun)
        values = [in_loss_dtype(from_tensor(x)) for x in self._held.inputs]
        try:
            y, _ = value_and_count(lossfun(*values, *targets))
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self.unknown = f"the arrays of the loss are unknown: {reason}"
            return None
        params = lossfun.params(False) if isinstance(lossfun, chainer.Link) else ()
        params = list(params)
        name = getattr(lossfun, "__qualname__", type(lossfun).__name__)
        held = self._held.of_loss((y,), targets, (p.array for p in params))
        return LayerMemory(name, held=held, **_fixed(params, self._optimizer))

    def layers(self) -> list[LayerMemory]:
        """Returns the memory of all layers."""
        again = dict(self._held.together())
        held = itertools.chain(self._held.layers, itertools.repeat(None))
        return [
            LayerMemory(**row, held=each, workspace_bytes=again.get(i, 0))
            for i, (row, each) in enumerate(zip(self._layers, held))
        ]

    def _call(self, part: Divisible, effect: str) -> dict[str, Any]:
        if effect:
            raise ValueError(effect)
        skipped = self._held.skipped()
        inputs = tuple(itertools.chain(self._held.inputs, *skipped.values()))
        results = as_function(part, skipped)(*map(from_tensor, inputs))
        results = results if isinstance(results, tuple) else (results,)
        outputs = self._held.add(part, inputs, results)
        shapes = tuple((each.array.shape, str(each.array.dtype)) for each in outputs)
        return {"outputs": shapes, "pending_bytes": _pending(part, results)}

    def _text(self, position: int) -> str:
        return self._model.model_layers[position]


def _shapes(name: str, value: Any) -> tuple[ShapeArray, ...]:
    arrays = value if isinstance(value, (tuple, list)) else (value,)
    if not arrays or not all(isinstance(array, ShapeArray) for array in arrays):
        arrays = as_arrays(name, value)
    return tuple(map(ShapeArray.of, arrays))


def _fixed(params: Any, optimizer: Any) -> dict[str, int]:
    """Returns the bytes of parameters, which are not made, and of their updates."""
    params = list(params)
    return {
        "parameter_bytes": sum(param.array.nbytes for param in params),
        "optimizer_bytes": state_bytes(optimizer, params),
        "n_parameters": sum(param.array.size for param in params),
    }


def _pending(part: Divisible, results: tuple) -> int:
    """Returns the bytes of arrays and output gradients that weight gradients need."""
    own, needed, gradients = persistents(part), BufferSet(), 0
    for function in functions_behind(results):
        arrays = [x.data for x in function.inputs]
        # A backward of parameters alone is W, even if it does not run in halves.
        others = [x for x in function.inputs if x.requires_grad]
        others = [x for x in others if parameter_of(x) is None]
        is_split = not others or backward_of(type(function)).is_splittable
        meets = any(array is not None and array in own for array in arrays)
        # A function of another library has its weights elsewhere.
        if hasattr(function, "traced_outputs"):
            meets = any(parameter_of(x) is not None for x in function.inputs)
        if is_split and meets:
            needed |= BufferSet(arrays_of(function))
            ys = [y() for y in function.outputs]
            gradients += sum(
                int(np.prod(y.shape)) * y.dtype.itemsize for y in ys if y is not None
            )
    return (needed - own).nbytes + gradients
