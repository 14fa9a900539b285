"""Linear layers and the pointwise functions between them as one function of Chainer's.

Where products are small, calls of functions take longer than products::

    one by one    linear  loop  linear  ...    each a node, and nodes of its gradients
    perceptron    [ product, loop, product ]   one node, one call of its backward

The products and loops are those of the single functions, on the same arrays, so that
all results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels import kept_weights, product_dtype, providers, threads
from chainer_kernels.catalogue import Backward
from chainer_kernels.contributions import Contribution, Product
from chainer_kernels.functions.sums import total
from chainer_kernels.functions.weight_gradients import Sum
from chainer_kernels.fusion.epilogue import Epilogue, continued
from chainer_kernels.fusion.epilogue_source import HEAD
from chainer_kernels.layouts import empty_like, flat

Array = np.ndarray
#: Values that the backward of a layer reads, by their numbers in its program.
Given = dict[int, Array]


class Layer(NamedTuple):
    """A linear layer, and the pointwise functions behind it.

    Attributes:
        epilogue: The functions; ``None`` if there are none.
        has_bias: Whether the layer has a bias.
    """

    epilogue: Epilogue | None
    has_bias: bool

    def continued(self, z: Array, b: Array | None) -> tuple[Array, Given]:
        """Returns the output for a product, and what the backward reads.

        Args:
            z: The product, which is overwritten.
            b: The bias.
        """
        if self.epilogue is None:
            if b is not None:
                z += b
            return z, {}
        chosen = self.epilogue.directions
        y = continued(self.epilogue, {HEAD: z}, b)
        if chosen.keeps_output:
            return y, {self.epilogue.program.output: y}
        return y, {HEAD: z} if HEAD in chosen.inputs else {}

    def product_gradient(self, given: Given, gy: Array) -> Array:
        """Returns the gradient of the product."""
        if self.epilogue is None:
            return gy
        program = self.epilogue.program
        wanted = program.gradients[HEAD]
        arrays = {**given, program.gradient: gy}
        for source, loop in self.epilogue.backward:
            if wanted in source.writes:
                reads = [arrays[value] for value in source.reads]
                writes = [empty_like(reads[0]) for _ in source.writes]
                threads.run_slices(loop, flat([*reads, *writes]))
                arrays.update(zip(source.writes, writes))
        return arrays[wanted]


class PerceptronFunction(chainer.FunctionNode):
    """The output of several layers, of x, and of W and perhaps b of each layer.

    Args:
        layers: The layers.
        label: Names of the functions, for display.
        one_by_one: Computes the output from the same inputs by functions of Chainer's.
    """

    def __init__(
        self, layers: Sequence[Layer], label: str, one_by_one: Callable
    ) -> None:
        self._layers, self._one_by_one = layers, one_by_one
        self._label = label
        # A flat list, in which a pipeline finds the arrays that wait elsewhere.
        self._arrays: list[Array] = []
        # For each layer the places of its input and of what its backward reads.
        self._reads: list[tuple[int, dict[int, int]]] = []
        # A gradient of the output, whether it came with `contributions`, and those of
        # all products that follow from it.
        self._known: tuple[Any, bool, list[Array]] = (None, False, [])

    @property
    def label(self) -> str:
        """The names of the functions, for display."""
        return self._label

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Computes the output."""
        self.retain_inputs(tuple(range(len(inputs))))
        x, provider = inputs[0], providers.active()
        self._arrays, self._reads = [], []
        for layer, (W, b) in zip(self._layers, self._parameters(inputs)):
            z = provider.product_with_weights(x, W, is_transposed=True)
            y, given = layer.continued(z, b)
            places = {value: self._place_of(a) for value, a in given.items()}
            self._reads.append((self._place_of(x), places))
            x = y
        return (x,)

    def _place_of(self, array: Array) -> int:
        """Holds an array for the backward, and returns its place."""
        self._arrays.append(array)
        return len(self._arrays) - 1

    def _held(self, place: int) -> tuple[Array, Given]:
        """Returns the input of a layer, and what its backward reads."""
        x, given = self._reads[place]
        return self._arrays[x], {value: self._arrays[i] for value, i in given.items()}

    def _parameters(self, inputs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yields W and b of each layer."""
        rest = iter(inputs[1:])
        for layer in self._layers:
            yield next(rest), next(rest) if layer.has_bias else None

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes the gradients of some inputs."""
        (gy,) = grad_outputs
        if chainer.config.enable_backprop:
            # A parameter may have been read on the way to x as well, where its gradient
            # is not one of this function.
            inputs = [F.identity(each) for each in self.get_retained_inputs()]
            wanted = [inputs[i] for i in indexes]
            with product_dtype.scope(product_dtype.FLOAT32):
                y = self._one_by_one(*inputs)
                found = chainer.grad([y], wanted, [gy], enable_double_backprop=True)
            return tuple(found)
        gradients, found = self._product_gradients(gy.array, False), {}
        if 0 in indexes:
            found[0] = _times(gradients[0], self.inputs[1].data)
        for i, (place, is_weight) in enumerate(self._places(), 1):
            if i in indexes and is_weight:
                x, _ = self._held(place)
                found[i] = providers.active().product(gradients[place].T, x)
            elif i in indexes:
                found[i] = total(gradients[place], (0,))
        return tuple(chainer.as_variable(found[i]) for i in indexes)

    def _places(self) -> Iterator[tuple[int, bool]]:
        """Yields the layer of each parameter, and whether it is the weight."""
        for place, layer in enumerate(self._layers):
            yield place, True
            if layer.has_bias:
                yield place, False

    def _product_gradients(self, gy: Array, is_told: bool) -> list[Array]:
        """Returns the gradients of all products.

        ``backward`` and ``contributions`` get the same ``gy`` one after the other. The
        second of them takes over what the first one has computed, once: the array may
        have other values in a later backward.

        Args:
            gy: The gradient of the output.
            is_told: Whether they are for ``contributions``.
        """
        known, was_told, found = self._known
        self._known = None, False, []
        if known is gy and was_told is not is_told:
            return found
        found, g = [], gy
        weights = [node.data for node, _ in self._parameters(self.inputs)]
        for place in reversed(range(len(self._layers))):
            _, given = self._held(place)
            g = self._layers[place].product_gradient(given, g)
            found.insert(0, g)
            if place:
                g = _times(g, weights[place])
        self._known = gy, is_told, found
        return found

    def contributions(
        self, parameters: Mapping[int, chainer.Parameter], gy: Array
    ) -> dict[int, Contribution]:
        """Returns contributions to the gradients of parameters, by their number."""
        gradients, shares = self._product_gradients(gy, True), {}
        for i, (place, is_weight) in enumerate(self._places(), 1):
            if i in parameters:
                g, (x, _) = gradients[place], self._held(place)
                shares[i] = Product(g.T, x) if is_weight else Sum(g, (0,))
        return shares


def _times(gradient: Array, W: Array) -> Array:
    """Returns the product of a gradient with weights."""
    kept_weights.count_application(W)
    return providers.active().product_with_weights(gradient, W)


PerceptronFunction.taken_apart = Backward(True, PerceptronFunction.contributions)
