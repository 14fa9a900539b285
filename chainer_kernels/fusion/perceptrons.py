"""Chains of several linear layers, with pointwise functions behind each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels import product_dtype
from chainer_kernels.fusion import products
from chainer_kernels.fusion.chains import Chain, ChainTrial, Draw
from chainer_kernels.fusion.epilogue import Epilogue
from chainer_kernels.fusion.perceptron_function import Layer, PerceptronFunction
from chainer_kernels.fusion.program import Program
from chainer_kernels.fusion.side_inputs import NOTHING
from chainer_kernels.fusion.tracing import NotPointwise, trace
from chainer_kernels.layouts import are_float32

#: Multiplications of a product that takes longer than the calls which are saved.
_LARGEST = 1 << 23


def is_small(link: Any, n_rows: int) -> bool:
    """Returns whether a link is a linear layer whose calls take as long as its product.

    Args:
        link: A layer.
        n_rows: Number of rows of its input.
    """
    return (
        products.is_product(link)
        and products.is_linear(link)
        and products.n_outputs(link) is not None
        and n_rows * link.W.size < _LARGEST
    )


class Perceptron(Chain):
    """A chain of several linear layers, and of pointwise functions without masks.

    Args:
        layers: The layers; the first one is linear.
        x: The input, (rows, columns).
    """

    def __init__(self, layers: Sequence[Callable], x: np.ndarray) -> None:
        super().__init__(layers, NOTHING)
        starts = [i for i, each in enumerate(layers) if products.is_product(each)]
        ends = [*starts[1:], len(layers)]
        self._parts = [(layers[i], layers[i + 1 : j]) for i, j in zip(starts, ends)]
        self._input = x.shape
        self._weights = [link.W.shape for link, _ in self._parts]
        self._traced: list[Layer] = []
        for start, (link, tail) in zip(starts, self._parts):
            # A chain that ends before the second layer is one of another kind.
            end = max(start, starts[1])
            if x.ndim != 2 or not products.are_ready(link):
                raise NotPointwise(end, "it is no linear layer of float32 vectors")
            try:
                layer, x = _traced(link, tail, x)
            except NotPointwise as error:
                raise NotPointwise(end, error.reason) from None
            self._traced.append(layer)
        self._traced_with = self._parameters
        if len({*map(id, self._traced_with)}) < len(self._traced_with):
            raise NotPointwise(starts[1], "two layers of a chain have the same weights")
        labels = [
            label
            for (link, _), layer in zip(self._parts, self._traced)
            for label in (type(link).__name__, *_labels(layer))
        ]
        # Products are in no table of operations, so they are no steps of a program.
        self._program = Program(1, (), (), 0, 1, (1,), tuple(labels))

    @property
    def program(self) -> Program:
        """The names of all functions, which draw no masks and are exact."""
        return self._program

    @property
    def _parameters(self) -> list[chainer.Parameter]:
        links = [link for link, _ in self._parts]
        return [p for link in links for p in (link.W, link.b) if p is not None]

    def is_ready(self, inputs: Sequence[np.ndarray]) -> bool:
        """Returns whether the chain can run on inputs in its current state."""
        links = [link for link, _ in self._parts]
        return (
            are_float32(*inputs)
            and inputs[0].shape == self._input
            and product_dtype.here() == product_dtype.FLOAT32
            and all(map(products.is_product, links))
            and all(map(products.are_ready, links))
            # A tie replaces a parameter, and may use it transposed.
            and all(a is b for a, b in zip(self._parameters, self._traced_with))
            and [link.W.shape for link in links] == self._weights
            and [products.leaves_bias(link) for link in links]
            == [layer.has_bias for layer in self._traced]
        )

    def apply(self, inputs: Sequence[Any], draw: Draw) -> chainer.Variable:
        """Runs the chain."""
        label = " > ".join(self._program.labels)
        function = PerceptronFunction(self._traced, label, self._one_by_one)
        (y,) = function.apply((*inputs, *self._parameters))
        return y

    def _one_by_one(self, x: Any, *parameters: Any) -> chainer.Variable:
        """Returns the output by functions of Chainer, for parameters in this order."""
        rest = iter(parameters)
        for (_, tail), layer in zip(self._parts, self._traced):
            x = F.linear(x, next(rest), next(rest) if layer.has_bias else None)
            for function in tail:
                x = function(x)
        return x

    def trial(self, inputs: Sequence[np.ndarray], draw: Draw) -> ChainTrial:
        """Returns the unfused and the fused chain, for a measurement."""
        epilogues = [layer.epilogue for layer in self._traced if layer.epilogue]
        n_before = sum(each.program.n_arrays for each in epilogues)
        n_before += 3 * sum(layer.has_bias for layer in self._traced)
        n_after = sum(each.n_arrays for each in epilogues)
        return self._trial(inputs, draw, self._parameters, (n_before, n_after))


def _traced(
    link: Any, tail: Sequence[Callable], x: np.ndarray
) -> tuple[Layer, np.ndarray]:
    """Returns a linear layer and the functions behind it, and an output of its shape.

    Raises:
        NotPointwise: If the functions cannot follow a product in its array.
    """
    has_bias = products.leaves_bias(link)
    with chainer.no_backprop_mode():
        z = F.linear(x, link.W).array
    if not tail:
        return Layer(None, has_bias), z
    program = trace(tail, [z])
    epilogue = Epilogue(program, has_bias)
    if program.masks or not program.is_exact:
        raise NotPointwise(0, "it draws random numbers, or is not exact")
    if program.gradients[0] is None or (epilogue.keeps_head and not has_bias):
        raise NotPointwise(0, "nothing can go on in the array of its product")
    return Layer(epilogue, has_bias), z


def _labels(layer: Layer) -> tuple[str, ...]:
    return layer.epilogue.program.labels if layer.epilogue else ()
