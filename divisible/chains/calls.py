"""The calls that the forward of a chain makes, and the values between them.

::

    def forward(self, x):                 call   callee     inputs
        h = F.relu(self.conv1(x))         0      /conv1     x
        g = self.conv2(h)                 1      ReLU       output of 0
        return h + g                      2      /conv2     output of 1
                                          3      Add        outputs of 1 and 2

Calls within the call of a link belong to the link. A value is identified by its node in
the graph, so anything that leaves the graph, such as ``h.array``, is detected.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

import chainer
from chainer import FunctionNode, Link, Variable

#: Position that stands for the inputs of the chain.
INPUT = -1

Shape = tuple[int, ...]


class ChainError(ValueError):
    """A chain that cannot be a line of layers. The message has the reason."""


class ForwardError(ChainError):
    """A forward that raised an error."""


class Value(NamedTuple):
    """One of the outputs of a call.

    Attributes:
        call: The position of the call, or :data:`INPUT`.
        output: Position of the output among those of the call.
    """

    call: int
    output: int


class Call(NamedTuple):
    """A call of a link, or of a function between two links.

    Attributes:
        callee: The link, or a copy of the function as it was before the call.
        path: Path of the link in the chain, such as ``/conv2``; empty for a function.
        inputs: The inputs of the call.
        shapes: Shapes of the outputs; ``None`` for an output that was not used.
    """

    callee: Link | FunctionNode
    path: str
    inputs: tuple[Value, ...]
    shapes: tuple[Shape | None, ...]

    @property
    def title(self) -> str:
        """The name of the link or function in messages."""
        return title(self.callee, self.path)


class Recording(NamedTuple):
    """The calls that one forward of a chain made.

    Attributes:
        calls: The calls on which the output depends, in order.
        output: The output of the forward.
        shapes: Shapes of the chain's inputs.
    """

    calls: tuple[Call, ...]
    output: Value
    shapes: tuple[Shape, ...]

    @property
    def n_inputs(self) -> int:
        """Number of the chain's inputs."""
        return len(self.shapes)

    @property
    def minibatch(self) -> str:
        """Shapes of the chain's inputs, as text."""
        return " and ".join(map(str, self.shapes))

    def shape(self, value: Value) -> Shape:
        """Returns the shape of a value."""
        shapes = self.shapes if value.call == INPUT else self.calls[value.call].shapes
        return shapes[value.output]


def title(callee: Link | FunctionNode, path: str) -> str:
    """Returns the name of a link or a function in messages."""
    name = type(callee).__name__
    return f"{path} ({name})" if path else f"the function {name}"


def record(
    chain: chainer.Chain, forward: Callable[..., Any], inputs: Sequence[Any], depth: int
) -> Recording:
    """Calls a chain's forward, and records the calls in it.

    Args:
        chain (chainer.Chain): The chain.
        forward: The chain itself, or another function that calls its links.
        inputs: The arrays to call it with.
        depth (int): How many levels of links are taken apart.

    Raises:
        ForwardError: If the forward raises an error.
        ChainError: If a call cannot be repeated from the values in the graph.
    """
    variables = as_variables(inputs)
    noted: list[_Noted] = []
    watch = _Watch(chain, depth, noted)
    with _Links(watch), _Functions(watch):
        y = call_forward(forward, variables)
    return _Resolver(chain, variables, noted).resolve(y)


def link_paths(chain: chainer.Link) -> dict[int, str]:
    """Returns the first path of each link below a chain, by its ``id``."""
    paths: dict[int, str] = {}
    for path, link in chain.namedlinks(skipself=True):
        paths.setdefault(id(link), path)
    return paths


def as_variables(inputs: Sequence[Any]) -> list[Variable]:
    """Returns variables of arrays, so that all operations on them are in the graph."""
    return [Variable(x, requires_grad=x.dtype.kind == "f") for x in inputs]


def call_forward(forward: Callable[..., Any], variables: Sequence[Variable]) -> Any:
    """Calls a forward, and returns its output.

    Raises:
        ForwardError: If it raises an error.
    """
    try:
        return forward(*variables)
    except ChainError:
        raise
    except Exception as error:
        raise ForwardError(
            f"forward raised {type(error).__name__}: {error}. It is called with a"
            f" variable for each input, without targets, and has to return the output"
            f" and no loss; forward= may name another function that does"
        ) from error


@dataclass
class _Noted:
    """A call as it was recorded; the origin of its inputs is found afterwards."""

    callee: Link | FunctionNode
    path: str
    # Variables and arrays; for a function arrays alone.
    inputs: tuple
    # The outputs of a link. A function has its own nodes.
    outputs: tuple = ()
    ran: FunctionNode | None = None


@dataclass
class _Watch:
    """The position of a running forward in the hierarchy of links."""

    chain: chainer.Chain
    depth: int
    noted: list[_Noted]
    entered: list[Link] = field(default_factory=list)
    # The number of entered links at the start of the recorded call, if there is one.
    level: int | None = None

    def __post_init__(self) -> None:
        self.paths = link_paths(self.chain)

    def enter(self, args: Any) -> None:
        link = args.link
        if link is self.chain and not self.entered:
            return
        self.entered.append(link)
        if self.level is not None:
            return
        is_last = len(self.entered) >= self.depth or not any(link.children())
        if not is_last:
            return
        self.level = len(self.entered)
        if id(link) not in self.paths:
            raise ChainError(
                f"forward calls a {type(link).__name__} that does not belong to the"
                f" chain: make it an attribute in init_scope()"
            )
        self._check(link, args)
        inputs = tuple(args.args)
        self.noted.append(_Noted(link, self.paths[id(link)], inputs))

    def _check(self, link: Link, args: Any) -> None:
        name = title(link, self.paths[id(link)])
        if args.kwargs:
            given = ", ".join(f"{key}=" for key in args.kwargs)
            raise ChainError(
                f"{name} is called with {given}, which a layer does not get: put the"
                f" call into the forward of a link of its own"
            )
        for value in args.args:
            if not isinstance(value, (Variable, *chainer.get_array_types())):
                raise ChainError(
                    f"{name} is called with a {type(value).__name__}, and layers pass"
                    f" arrays and variables only: put what makes it, and the call, into"
                    f" the forward of a link of its own"
                )
        if not args.args:
            raise ChainError(f"{name} is called without an input")
        if not chainer.config.train:
            raise ChainError(
                f"{name} is called with chainer.config.train = False, and layers have"
                f" one mode for all: put that into the forward of a link of its own"
            )
        if not chainer.config.enable_backprop:
            raise ChainError(
                f"{name} is called in no_backprop_mode(): call it without, and freeze"
                f" it by disable_update()"
            )

    def leave(self, args: Any) -> None:
        if args.link is self.chain and not self.entered:
            return
        if self.level == len(self.entered):
            self.level = None
            outputs = args.out if isinstance(args.out, tuple) else (args.out,)
            for value in outputs:
                if not isinstance(value, Variable):
                    name = title(args.link, self.paths[id(args.link)])
                    raise ChainError(
                        f"{name} returns a {type(value).__name__}, and layers return a"
                        f" variable or a tuple of variables"
                    )
            self.noted[-1].outputs = outputs
        self.entered.pop()

    def apply(self, function: FunctionNode, arrays: tuple) -> None:
        if self.level is None:
            if not chainer.config.enable_backprop:
                raise ChainError(
                    f"{title(function, '')} is called in no_backprop_mode(): put it"
                    f" into the forward of a link of its own"
                )
            before = copy.copy(function)
            self.noted.append(_Noted(before, "", arrays, ran=function))


class _Links(chainer.LinkHook):
    name = "divisible.chains.links"

    def __init__(self, watch: _Watch) -> None:
        self.forward_preprocess = watch.enter
        self.forward_postprocess = watch.leave


class _Functions(chainer.FunctionHook):
    name = "divisible.chains.functions"

    def __init__(self, watch: _Watch) -> None:
        self.forward_preprocess = watch.apply


class _Resolver:
    """Finds the calls that made the inputs of other calls."""

    def __init__(
        self,
        chain: chainer.Chain,
        variables: Sequence[Variable],
        noted: Sequence[_Noted],
    ) -> None:
        self._noted = noted
        self._shapes = tuple(x.shape for x in variables)
        self._params = {id(param.node): path for path, param in chain.namedparams()}
        # Keys are nodes. Arrays that became variables only in a function are found by
        # array.
        self._values: dict[int, Value] = {}
        self._arrays: dict[int, Value] = {}
        for i, x in enumerate(variables):
            self._values[id(x.node)] = self._arrays[id(x.array)] = Value(INPUT, i)

    def resolve(self, y: Any) -> Recording:
        calls = [self._call(number, each) for number, each in enumerate(self._noted)]
        if not isinstance(y, Variable):
            raise ChainError(
                f"forward returns a {type(y).__name__}, and a model returns one"
                f" variable: give a forward= that returns the last output"
            )
        output = self._value(y, y.array, "forward returns")
        return _used(calls, output, self._shapes)

    def _call(self, number: int, noted: _Noted) -> Call:
        name = title(noted.callee, noted.path)
        if noted.ran is None:
            given = [(value, _array(value)) for value in noted.inputs]
            nodes = [y.node for y in noted.outputs]
        else:
            given = list(zip(noted.ran.inputs, noted.inputs))
            nodes = [y() for y in noted.ran.outputs]
        inputs = [self._value(value, array, f"{name} reads") for value, array in given]
        if not inputs:
            raise ChainError(f"{name} is called without an input")
        for i, node in enumerate(nodes):
            # An output that no call used has no node any more.
            if node is not None:
                self._values[id(node)] = Value(number, i)
        shapes = tuple(None if node is None else node.shape for node in nodes)
        return Call(noted.callee, noted.path, tuple(inputs), shapes)

    def _value(self, value: Any, array: Any, who: str) -> Value:
        node = value.node if isinstance(value, Variable) else value
        if id(node) in self._params:
            raise ChainError(
                f"{who} the parameter {self._params[id(node)]} outside of a call of the"
                f" link that has it: call the link itself (not its forward), or put"
                f" the parameter and what reads it into a link of their own"
            )
        found = self._values.get(id(node))
        if found is None:
            found = self._arrays.get(id(array))
        if found is None:
            raise ChainError(
                f"{who} {_text(array)} that is neither the input nor what a link or a"
                f" function has returned (as h.array is none, nor a constant, nor what"
                f" NumPy made of the input): compute it by Chainer's functions, or in"
                f" the forward of a link of its own"
            )
        return found


def _array(value: Any) -> Any:
    return value.array if isinstance(value, Variable) else value


def _text(array: Any) -> str:
    return f"an array of shape {array.shape}"


def _used(calls: list[Call], output: Value, shapes: tuple[Shape, ...]) -> Recording:
    """Leaves out functions on which the output does not depend."""
    used, open_values = set(), [output]
    while open_values:
        number = open_values.pop().call
        if number != INPUT and number not in used:
            used.add(number)
            open_values.extend(calls[number].inputs)
    for number, call in enumerate(calls):
        if number not in used and call.path:
            raise ChainError(
                f"what {call.title} returns is not used for what forward returns: its"
                f" parameters would have no gradient"
            )
    renumbered = {INPUT: INPUT}
    renumbered.update((number, i) for i, number in enumerate(sorted(used)))

    def moved(value: Value) -> Value:
        return Value(renumbered[value.call], value.output)

    kept = [calls[number] for number in sorted(used)]
    kept = [call._replace(inputs=tuple(map(moved, call.inputs))) for call in kept]
    return Recording(tuple(kept), moved(output), shapes)
