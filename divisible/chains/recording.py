"""The run of a chain's forward, during which its calls are noted.

A link is noted where it is called, and a function of Chainer where it is applied. An
operation of NumPy is noted where it reads an array that was made of the inputs. The
values between them are found afterwards, in :mod:`~divisible.chains.resolving`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer import FunctionNode, Link, Variable
from chainer.links.rnn.n_step_rnn import NStepRNNBase

from divisible.chains.apart import Apart, UnlikeLayerError
from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import (
    Callee,
    ChainError,
    ForwardError,
    link_paths,
    short,
    title,
)
from divisible.chains.made_arrays import recorded_arrays
from divisible.chains.own_calls import reported_calls, signature_of
from divisible.chains.places import Place, here, raised_at
from divisible.chains.positional import by_position, is_plain
from divisible.chains.random_draws import refused_draws
from divisible.chains.read_arrays import reported_arrays
from divisible.chains.slots import Slot, take_out
from divisible.chains.traced_arrays import traced
from divisible.chains.written_weights import Weights, changed

#: Attributes of functions that are no arguments.
_OF_CALLS = {"_input_layouts", "stack", "_cnt", "_node", "_owned_node"}


@dataclass
class Noted:
    """A call as it was made.

    Attributes:
        callee: The link, a copy of the function as it was before, or the operation.
        path: Path of the link in the chain; empty for others.
        inputs: Variables and arrays.
        place: Line of the user's code.
        outputs: Variables and arrays that were returned; empty for a function.
        ran: The function itself, which has the nodes of its inputs and outputs.
    """

    callee: Callee
    path: str
    inputs: tuple
    place: Place | None
    outputs: tuple = ()
    ran: FunctionNode | None = None


class Run(NamedTuple):
    """A forward that has run.

    Attributes:
        given: The inputs, as the forward got them.
        noted: The calls in their order.
        result: The value that the forward returned.
    """

    given: list[Any]
    noted: list[Noted]
    result: Any


def run(
    chain: chainer.Chain,
    forward: Callable[..., Any],
    inputs: Sequence[Any],
    apart: Apart,
    as_variables: bool,
    weights: Weights | None = None,
) -> Run:
    """Calls a chain's forward, and notes the calls in it.

    Args:
        chain (chainer.Chain): The chain.
        forward: The chain itself, or another function that calls its links.
        inputs: The arrays to call it with.
        apart (Apart): The links that are taken apart.
        as_variables (bool): Whether the forward gets variables in place of arrays.
        weights (Weights): Parameters to compare before and after calls of links;
            ``None`` not to compare them.

    Raises:
        ForwardError: If the forward raises an error.
        UnlikeLayerError: If no layer can make a call of a link with children.
        ChainError: If no layer can make another call.
    """
    watch = _Watch(chain, apart, weights)
    given = given_to(inputs, as_variables)
    if not as_variables:
        # CuPy's arrays are given as they are, and operations on them are not noted.
        given = [traced(x, watch) if type(x) is np.ndarray else x for x in given]
    watch.given = given
    hooks = _Links(watch), _Functions(watch)
    try:
        reports = reported_calls(chain, watch), reported_arrays(watch.read, watch.write)
        draws = refused_draws(watch.refuse_draw)
        with hooks[0], hooks[1], reports[0], reports[1], recorded_arrays(watch), draws:
            result = call_forward(forward, given)
            if weights is not None:
                weights.check(chain.params(), None)
    finally:
        watch.is_over = True
    return Run(given, watch.noted, result)


def given_to(inputs: Sequence[Any], as_variables: bool) -> list[Any]:
    """Returns copies of the inputs, as a forward gets them: arrays or variables."""
    # A forward may change its inputs in place.
    inputs = [x.copy() for x in inputs]
    if not as_variables:
        return inputs
    return [Variable(x, requires_grad=x.dtype.kind == "f") for x in inputs]


def call_forward(forward: Callable[..., Any], given: Sequence[Any]) -> Any:
    """Calls a forward, and returns its output.

    Raises:
        ForwardError: If it raises an error.
    """
    try:
        return forward(*given)
    except ChainError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise ForwardError(
            f"forward raised {type(error).__name__}: {text[:300]}. It is called with an"
            f" array for each input, without targets, and has to return the output"
            f" and no loss; forward= may name another function that does",
            raised_at(error.__traceback__),
        ) from error


class _Entered(NamedTuple):
    """A link whose call is running; one that calls its parent's has the same level."""

    link: Link
    level: int


class _Watch:
    """The position of a running forward in the hierarchy of links."""

    def __init__(
        self, chain: chainer.Chain, apart: Apart, weights: Weights | None
    ) -> None:
        self.noted: list[Noted] = []
        self.given: list[Any] = []
        self.is_over = False
        self._thread = threading.get_ident()
        self._train = chainer.config.train
        self._chain = chain
        self._apart = apart
        self._weights = weights
        self._paths = link_paths(chain)
        self._entered: list[_Entered] = []
        # The number of entered calls in the noted one, if there is one.
        self._within: int | None = None
        self._n_functions = 0

    @property
    def is_on(self) -> bool:
        """Whether a call that is made now is one of the chain's forward itself."""
        if self.is_over or threading.get_ident() != self._thread:
            return False
        return self._within is None and not self._n_functions

    def enter(self, link: Link, args: tuple, kwargs: dict) -> None:
        """Begins the call of a link."""
        if link is self._chain and not self._entered:
            return
        above = self._entered[-1] if self._entered else _Entered(self._chain, 0)
        is_again = above.link is link
        self._entered.append(_Entered(link, above.level + (not is_again)))
        if self._within is not None or is_again:
            return
        path = self._paths.get(id(link), "")
        if not self._apart.is_layer(link, path, above.level + 1):
            return
        self._within = len(self._entered)
        place = _place()
        if id(link) not in self._paths:
            raise ChainError(
                f"forward calls a {type(link).__name__} that does not belong to the"
                f" chain: make it an attribute in init_scope()",
                place,
            )
        if self._weights is not None:
            self._weights.check(link.params(), place)
        inputs = self._checked(link, path, args, kwargs, place)
        self.noted.append(Noted(link, path, inputs, place))

    def _checked(
        self, link: Link, path: str, args: tuple, kwargs: dict, place: Place | None
    ) -> tuple:
        """Returns the inputs of a link by position, if a layer can make the call."""
        name = title(link, path)
        try:
            inputs = by_position(signature_of(link), name, args, kwargs)
        except ChainError as error:
            raise _unlike_a_layer(link, path, str(error), place) from None
        if not inputs:
            raise ChainError(f"{name} is called without an input", place)
        if chainer.config.train is not self._train:
            raise ChainError(
                f"{name} is called with chainer.config.train ="
                f" {chainer.config.train}, and layers have"
                f" one mode for all: put that into the forward of a link of its own",
                place,
            )
        if not chainer.config.enable_backprop:
            raise ChainError(
                f"{name} is called in no_backprop_mode(): call it without, and freeze"
                f" it by disable_update()",
                place,
            )
        return inputs

    def leave(self, link: Link, result: Any) -> None:
        """Ends the call of a link."""
        if link is self._chain and not self._entered:
            return
        if self._within == len(self._entered):
            self._within = None
            if self._weights is not None:
                self._weights.keep(link.params())
            outputs = result if isinstance(result, tuple) else (result,)
            for value in outputs:
                if not is_plain(value):
                    path = self._paths[id(link)]
                    reason = (
                        f"{title(link, path)} returns a"
                        f" {type(value).__name__}, {short(value)}, and layers return"
                        f" a variable or a tuple of variables: let it return them, or"
                        f" put the calls of it and of what reads the result into the"
                        f" forward of a link of its own"
                    )
                    place = self.noted[-1].place
                    raise _unlike_a_layer(link, path, reason, place)
            self.noted[-1].outputs = outputs
        self._entered.pop()

    def apply(self, function: FunctionNode, arrays: tuple) -> None:
        """Begins a function of Chainer."""
        if self.is_on:
            place = _place()
            if not chainer.config.enable_backprop:
                raise ChainError(
                    f"{title(function, '')} is called in no_backprop_mode(): put it"
                    f" into the forward of a link of its own",
                    place,
                )
            callee, inputs = _before_call(function, arrays)
            self.noted.append(Noted(callee, "", inputs, place, ran=function))
        self._n_functions += 1

    def applied(self, function: FunctionNode, arrays: tuple) -> None:
        """Ends a function of Chainer."""
        self._n_functions -= 1

    def note(
        self, operation: ArrayOperation, inputs: tuple, outputs: tuple[Any, ...]
    ) -> None:
        """Records an operation of NumPy."""
        self.noted.append(Noted(operation, "", inputs, _place(), outputs))

    def read(self, variable: Variable, array: Any) -> Any:
        """Records that the forward reads the array of a variable."""
        is_made = variable.creator_node is not None or any(
            variable is x for x in self.given
        )
        # The array of an input that was traced is traced itself.
        if not (self.is_on and is_made and type(array) is np.ndarray):
            return array
        self.note(ArrayOperation(_array, (Slot(0),), {}), (variable,), (array,))
        return traced(array, self)

    def write(self, variable: Variable) -> None:
        """Raises the error of a forward that gives a parameter another array."""
        if self.is_on and isinstance(variable, chainer.Parameter):
            params = self._chain.namedparams()
            paths = [path for path, param in params if param is variable]
            raise changed(paths[0] if paths else str(variable.name), _place())

    def refuse_draw(self) -> None:
        """Raises the error of a forward that draws random numbers itself."""
        if self.is_on:
            raise ChainError(
                "forward draws random numbers, and a layer would keep them, or the way"
                " that they decide: use a function of Chainer that draws, such as"
                " F.dropout or F.gaussian, or put it into the forward of a link of its"
                " own",
                _place(),
            )

    def refuse_change(self) -> None:
        """Raises the error of a forward that changes an array in place."""
        raise ChainError(
            "forward changes an array in place, which was made of its input, and layers"
            " pass on what an operation returns: write y = np.sort(x) for x.sort(), or"
            " put it into the forward of a link of its own",
            _place(),
        )

    def refuse_number(self) -> None:
        """Raises the error of a forward that makes a number of an array's values."""
        raise ChainError(
            "forward makes a number of values that depend on its input, such as"
            " x.max(), int(n) or the condition of an if, and a layer would keep that"
            " number for all minibatches: leave the check out, or put it, and what"
            " reads the number, into the forward of a link of its own",
            _place(),
        )


def _array(array: Any) -> Any:
    return array


_array.__name__ = "array"


def _unlike_a_layer(
    link: Link, path: str, reason: str, place: Place | None
) -> ChainError:
    # An n-step link reads the parameters of its children itself.
    if any(link.children()) and not isinstance(link, NStepRNNBase):
        return UnlikeLayerError(path, reason, place)
    return ChainError(reason, place)


def _place() -> Place | None:
    return here(call_forward.__code__)


def _before_call(function: FunctionNode, arrays: tuple) -> tuple[Callee, tuple]:
    """Returns a copy of a function as it was before its call, and all its inputs.

    Arrays among its arguments, such as the condition of ``F.where``, are inputs behind
    the others.
    """
    if isinstance(function, chainer.function.FunctionAdapter):
        before = copy.copy(function.function)
    else:
        before = copy.copy(function)
    for name in _OF_CALLS & vars(before).keys():
        del vars(before)[name]
    inputs = list(arrays)
    for name in sorted(vars(before)):
        vars(before)[name] = take_out(vars(before)[name], inputs)
    return before, tuple(inputs)


class _Links(chainer.LinkHook):
    name = "divisible.chains.links"

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def forward_preprocess(self, args: Any) -> None:
        self._watch.enter(args.link, args.args, args.kwargs)

    def forward_postprocess(self, args: Any) -> None:
        self._watch.leave(args.link, args.out)


class _Functions(chainer.FunctionHook):
    name = "divisible.chains.functions"

    def __init__(self, watch: _Watch) -> None:
        self.forward_preprocess = watch.apply
        self.forward_postprocess = watch.applied
