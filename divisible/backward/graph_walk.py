"""The traversal of the graph of one microbatch, back from its outputs.

Chainer's own, :meth:`chainer.Variable.backward`, cannot stop between the gradients of
activations and those of weights, nor sum the latter over microbatches.
"""

from __future__ import annotations

import collections
import heapq
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import chainer
from chainer import _backprop_utils, backend, variable
from chainer.backends import cuda

from chainer_kernels.catalogue import backward_of, weights_of
from divisible.backward.graph_functions import (
    arrays_of,
    functions_behind,
    parameter_of,
    weight_functions,
)
from divisible.backward.weight_gradients import WeightGradients

Array = Any

_NOTHING = nullcontext()
# Chainer's constructor, without checks of the arguments.
_unchecked = chainer.Variable._init_unchecked


class GraphWalk:
    """The backward of one microbatch.

    Functions wait in two queues, those between activations and those between weights.
    They run in the order of :meth:`chainer.Variable.backward`, which decides the order
    of additions: by rank (all consumers of a value rank higher than its creator), then
    in the order in which they were queued.

    Args:
        weight_gradients (WeightGradients): The object to which gradients of parameters
            are added.
        defer (bool): Whether :meth:`run_activations` leaves out as many gradients of
            weights as it can.

    Attributes:
        deferred (collections.deque): Functions that were left out, each with the
            positions of its weights and the gradients of its outputs.
    """

    def __init__(self, weight_gradients: WeightGradients, defer: bool) -> None:
        self._weight_gradients = weight_gradients
        self._defer = defer
        # A node has several gradients only under chainer.config.lazy_grad_sum.
        self._gradients: dict[variable.VariableNode, list[chainer.Variable]] = {}
        self._activations = _RankQueue()
        self._weights = _RankQueue()
        self.deferred: collections.deque[tuple] = collections.deque()
        self._inputs: frozenset[variable.VariableNode] = frozenset()
        self._weight_functions: frozenset[chainer.FunctionNode] = frozenset()

    def run_activations(
        self,
        inputs: Sequence[chainer.Variable],
        outputs: list[chainer.Variable],
        output_gradients: list[Array | None],
    ) -> tuple[Array | None, ...]:
        """Traverses the activations; see :func:`.backprop.backward`.

        The lists of outputs and of their gradients are emptied. So an array that nobody
        else has is freed when the function that made the output has run.
        """
        if len(outputs) != len(output_gradients):
            raise ValueError(
                f"{len(output_gradients)} output gradients for {len(outputs)} outputs"
            )
        for y, gy in zip(outputs, output_gradients):
            if gy is not None:
                variable._check_grad_type(None, y, False, gy)

        self._inputs = frozenset([x.node for x in inputs])
        self._weight_functions = weight_functions(outputs)
        completion = self._weight_gradients.completion
        if not self._defer and completion is not None:
            steps = [(f, _targets(f)) for f in functions_behind(outputs)]
            completion.expect(self._parameters_of(steps))
        ends = []
        with chainer.using_config("enable_backprop", False):
            for y, gy in zip(outputs, output_gradients):
                node = y.node
                ends.append(weakref.ref(node))
                if gy is not None and y.requires_grad:
                    gy = _unchecked(gy, requires_grad=False, layout=y.layout)
                    self._gradients.setdefault(node, []).append(gy)
                    self._route(node)
            y = gy = node = None
            outputs.clear()
            output_gradients.clear()
            while self._activations.heap:
                self._run_next(self._activations, self._defer)
            gradients = [self._pop_gradient(x.node) for x in inputs]

        if self.deferred:
            self._release_unneeded()
        # Parts of the graph that no gradient reached still hang on the outputs.
        for end in ends:
            node = end()
            if node is not None and not self._is_weight(node):
                node.unchain()
        self._inputs = frozenset()
        return tuple([None if g is None else g.array for g in gradients])

    def run_weights(self) -> None:
        """Runs the functions that were left out, and those between weights."""
        completion = self._weight_gradients.completion
        if self._defer and completion is not None:
            completion.expect(self.expected_parameters())
        while self.deferred:
            self.run_next_weights()
        self.run_between_weights()

    def run_next_weights(self) -> None:
        """Runs the first of the functions that were left out."""
        with chainer.using_config("enable_backprop", False):
            self._step(*self.deferred.popleft())

    def run_between_weights(self) -> None:
        """Runs the functions between weights, after all that were left out."""
        if not self._weights.heap:
            return
        with chainer.using_config("enable_backprop", False):
            while self._weights.heap:
                self._run_next(self._weights, defers=False)

    def expected_parameters(self) -> Iterator[chainer.Parameter]:
        """Yields the parameters to which :meth:`run_weights` adds, some twice."""
        deferred = [(f, weights) for f, weights, _ in self.deferred]
        between = [(f, _targets(f)) for f in self._weight_functions]
        return self._parameters_of([*deferred, *between])

    def add_to(self, weight_gradients: Any) -> None:
        """Replaces the object to which gradients of parameters are added."""
        self._weight_gradients = weight_gradients

    def held_arrays(self) -> Iterator[Array]:
        """Yields the arrays that the deferred functions hold, some twice."""
        for function, _, output_gradients in self.deferred:
            yield from (array for array in arrays_of(function) if array is not None)
            yield from (g.array for g in output_gradients if g is not None)
        for gradients in self._gradients.values():
            yield from (g.array for g in gradients)

    def _run_next(self, queue: _RankQueue, defers: bool) -> None:
        """Runs the first function of a queue, except for the part that is deferred."""
        function = heapq.heappop(queue.heap)[2]
        # No second push can follow: all functions that push this one have run.
        queue.waiting.remove(function)
        gradients = []
        for reference in function.outputs:
            y = reference()
            if y is not None:
                # All consumers have run. A deferred one that keeps this node would also
                # keep the graph below it.
                y.unchain()
            gradients.append(self._pop_gradient(y))
        output_gradients, targets = tuple(gradients), _targets(function)
        if defers:
            weights, others = self._apart(function, targets)
            if weights and (not others or backward_of(type(function)).is_splittable):
                self.deferred.append((function, weights, output_gradients))
                targets = others
        if targets:
            self._step(function, targets, output_gradients)

    def _apart(
        self, function: chainer.FunctionNode, targets: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns which inputs of a function are weights, and which are not."""
        weights, others = [], []
        for i in targets:
            (weights if self._is_weight(function.inputs[i]) else others).append(i)
        return tuple(weights), tuple(others)

    def _step(
        self,
        function: chainer.FunctionNode,
        targets: tuple[int, ...],
        output_gradients: tuple[chainer.Variable | None, ...],
    ) -> None:
        """Computes the gradients of some inputs of a function."""
        parameters = {}
        for i in targets:
            x = function.inputs[i]
            owner = None if x in self._inputs else x.get_variable_or_none()
            if isinstance(owner, chainer.Parameter):
                parameters[i] = owner
        arguments = function, targets, output_gradients, parameters
        # Function hooks are called for the step, which runs on its arrays' device.
        if (
            cuda.available
            or chainer.get_function_hooks()
            or function._n_local_function_hooks
        ):
            with _observed(function, output_gradients):
                self._compute(*arguments)
        else:
            self._compute(*arguments)
        completion = self._weight_gradients.completion
        if completion is not None:
            for parameter in parameters.values():
                completion.add(parameter)

    def _parameters_of(
        self, steps: Iterable[tuple[chainer.FunctionNode, tuple[int, ...]]]
    ) -> Iterator[chainer.Parameter]:
        """Yields the parameters among the targets of steps, some twice."""
        for function, targets in steps:
            for i in targets:
                parameter = self._own_parameter(function.inputs[i])
                if parameter is not None:
                    yield parameter

    def _compute(
        self,
        function: chainer.FunctionNode,
        targets: tuple[int, ...],
        output_gradients: tuple[chainer.Variable | None, ...],
        parameters: dict[int, chainer.Parameter],
    ) -> None:
        """Computes gradients, and passes them on.

        A rule adds some gradients of parameters without forming them. The function
        itself computes the others. Parameters that are reported leave ``parameters``.
        """
        try:
            kind = type(function)
            rule = weights_of(kind) if parameters else None
            # Debug mode checks the arrays that functions return for NaN.
            if rule is not None and (
                not chainer.is_debug() or backward_of(kind).is_only_told
            ):
                given = output_gradients
                if not backward_of(kind).is_given_all:
                    given = output_gradients[0].array
                added = rule(function, parameters, given)
                for i, contribution in added.items():
                    self._weight_gradients.accumulate(parameters[i], contribution)
                targets = tuple([i for i in targets if i not in added])
            if not targets:
                return
            if backward_of(kind).has_arrays and not chainer.is_debug():
                self._compute_arrays(function, targets, output_gradients, parameters)
                return
            gradients: dict[variable.VariableNode, list[chainer.Variable]] = {}
            for i in targets:
                x = function.inputs[i]
                if x not in gradients:
                    gradients[x] = self._gradients.setdefault(x, [])
            _backprop_utils.backprop_step(
                function, targets, output_gradients, gradients, chainer.is_debug()
            )
            for x, received in gradients.items():
                for gx in received:
                    variable._check_grad_type(function, x, True, gx.raw_array)
                self._route(x)
        except Exception as error:
            # A model's forward does the same: the traceback shows the code of the
            # function, but not its layer.
            error.layer_position = getattr(function, "layer_position", None)
            raise

    def _compute_arrays(
        self,
        function: Any,
        targets: tuple[int, ...],
        output_gradients: tuple[chainer.Variable | None, ...],
        parameters: dict[int, chainer.Parameter],
    ) -> None:
        """Computes gradients of a function that has them as arrays.

        A gradient of a parameter is reported before the function computes the next one.
        """
        given = [None if g is None else g.array for g in output_gradients]
        arrays = function.gradient_arrays(targets, given)
        completion = self._weight_gradients.completion
        for i, array in zip(targets, arrays):
            if array is None:
                continue
            if i in parameters:
                parameter = parameters.pop(i)
                self._weight_gradients.add(parameter, array)
                if completion is not None:
                    completion.add(parameter)
                continue
            x = function.inputs[i]
            received = self._gradients.setdefault(x, [])
            received.append(_unchecked(array, requires_grad=False))
            if len(received) > 1 and not chainer.config.lazy_grad_sum:
                received[:] = [chainer.functions.add(*received)]
            self._route(x)

    def _route(self, x: variable.VariableNode) -> None:
        """Passes on the gradient that a node has received."""
        creator = x.creator_node
        if not self._gradients[x]:
            del self._gradients[x]
        elif creator in self._weight_functions:
            self._weights.push(creator)
        elif creator is not None:
            self._activations.push(creator)
        elif x not in self._inputs:
            gradient = self._pop_gradient(x)
            parameter = parameter_of(x)
            # Other leaves are constants, whose gradient is not needed.
            if parameter is not None:
                self._weight_gradients.add(parameter, gradient.array)

    def _pop_gradient(self, x: variable.VariableNode | None) -> chainer.Variable | None:
        received = self._gradients.pop(x, None)
        if not received:
            return None
        return received[0] if len(received) == 1 else chainer.functions.add(*received)

    def _is_weight(self, x: variable.VariableNode) -> bool:
        if x.creator_node is None:
            return self._own_parameter(x) is not None
        return x.creator_node in self._weight_functions

    def _own_parameter(self, x: variable.VariableNode) -> chainer.Parameter | None:
        """Returns the parameter of a leaf, unless the leaf is an input."""
        return None if x in self._inputs else parameter_of(x)

    def _release_unneeded(self) -> None:
        """Cuts parts of the graph that deferred functions hold, but do not need."""
        retained, others = set(), set()
        for function, _, _ in self.deferred:
            indexes = function._input_indexes_to_retain or ()
            is_splittable = backward_of(type(function)).is_splittable
            for i, x in enumerate(function.inputs):
                if not self._is_weight(x):
                    x.unchain()
                    # Functions that are not in the catalogue might read other inputs.
                    needed = i in indexes or not is_splittable
                    (retained if needed else others).add(x)
        for x in others - retained:
            # A function that ran in I retained the array. Setting the property ``data``
            # would also remove the shape, which some functions read.
            x._data = None


class _RankQueue:
    """Functions by falling rank, each once; equal ranks in the order of pushes."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, chainer.FunctionNode]] = []
        self.waiting: set[chainer.FunctionNode] = set()
        self._pushed = 0

    def push(self, function: chainer.FunctionNode) -> None:
        if function not in self.waiting:
            self.waiting.add(function)
            heapq.heappush(self.heap, (-function.rank, self._pushed, function))
            self._pushed += 1


def _targets(function: chainer.FunctionNode) -> tuple[int, ...]:
    return tuple([i for i, x in enumerate(function.inputs) if x.requires_grad])


@contextmanager
def _observed(
    function: chainer.FunctionNode,
    output_gradients: tuple[chainer.Variable | None, ...],
) -> Iterator[None]:
    """Runs function hooks around a step, on the device of its arrays."""
    hooks = dict(chainer.get_function_hooks())
    if function._n_local_function_hooks:
        hooks.update(function.local_function_hooks)
    inputs = tuple([x.data for x in function.inputs])
    gradients = tuple([None if g is None else g.raw_array for g in output_gradients])
    # Without a GPU there is one device, and finding it takes a while.
    device = _NOTHING
    if cuda.available:
        device = chainer.using_device(
            backend.get_device_from_array(*inputs, *gradients)
        )
    with device:
        for hook in hooks.values():
            hook.backward_preprocess(function, inputs, gradients)
        yield
        for hook in hooks.values():
            hook.backward_postprocess(function, inputs, gradients)
