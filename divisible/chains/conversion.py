"""Converts a chain of Chainer to a list of layers with the same results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer

from divisible.chains.arguments import Seen
from divisible.chains.calls import (
    Call,
    ChainError,
    ForwardError,
    Recording,
    as_variables,
    call_forward,
    link_paths,
    record,
)
from divisible.chains.comparison import compare
from divisible.chains.function_layers import function_layer
from divisible.chains.line import line_up
from divisible.chains.names import ChainNames
from divisible.chains.preserved_state import alike_run, preserved_state
from divisible.chains.sizes import Example, other_sizes
from divisible.early_draws import EarlyDraws, draw_early, draws
from divisible.layer_list import Layer
from divisible.model import Divisible
from divisible.random_streams import restored_random_state


class ChainLayers(Divisible):
    """The layers that :func:`from_chain` found.

    Attributes:
        chain_names (ChainNames): The path in the chain of each layer that is a link.
    """

    chain_names = ChainNames({})


def from_chain(
    chain: chainer.Chain,
    x: Any,
    *,
    depth: int = 1,
    forward: Callable[..., Any] | None = None,
) -> ChainLayers:
    """Converts a chain with a ``forward`` to a list of layers.

    The chain runs on ``x``, and its calls are recorded. Each child that it calls
    becomes a layer: the very same link, not a copy. Each function that it calls between
    two links becomes a layer, too. A value that is used later than by the next call is
    stashed and popped::

        def forward(self, x):               0  stash('x')
            h = F.relu(self.conv1(x))       1  conv1           '/conv1/W' is '/1/W'
            return self.conv2(h) + x        2  relu
                                            3  conv2           '/conv2/W' is '/3/W'
                                            4  pop('x', add)

    The chain also runs on a minibatch with another number of samples, and on longer
    sequences and larger images if it accepts them. Arguments that depend on these sizes
    are refused, because they would be wrong in another minibatch, or in a microbatch.
    Arguments that are sizes of a function's own input follow it:
    ``h.reshape(len(h), -1)``, ``F.average_pooling_2d(h, h.shape[2:])``. Before the
    layers are returned, they are compared with the chain: their outputs in training and
    in test mode, and the gradients of all parameters. The chain is left as it was. Only
    links that get their sizes in their first call have been called, in test mode.

    Such links, as ``L.Linear(None, 10)``, draw their weights here, and in a serial
    script in its first minibatch. For the weights of the serial script, make the
    iterators, which shuffle, before this call. Otherwise the first step of a pipeline
    warns, if NumPy's generator was seeded.

    A chain that makes its parameters here needs the memory for all of them on each
    rank. Write a chain that is too large for that as a list, in
    :func:`~divisible.deferred_init`.

    Args:
        chain (chainer.Chain): The model without the loss: the predictor, not the
            ``L.Classifier``. The layers of a :class:`chainer.Sequential` are used
            unchanged.
        x (array or tuple of arrays): A small minibatch, samples along the first axis.
        depth (int): How many levels of links are taken apart. With 2 the children of
            the children become layers, and so does a child without children.
        forward: The function of ``x`` to take apart, if it is not the chain's call:
            ``chain.predict``, or ``lambda x: chain(x, layers=['fc'])['fc']``.

    Returns:
        ChainLayers: A :class:`~divisible.Divisible`. Its ``chain_names`` has the paths
        in the chain: ``chain_names.in_chain('/3/W')`` is ``'/conv2/W'``.

    Raises:
        ValueError: If the calls of forward cannot be put in a line; the message names
            the child or function and the reason.
        TypeError: If ``chain`` is not a chain, or is a ``Divisible`` already.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> import numpy as np
        >>> class Net(chainer.Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.first = L.Linear(4, 4)
        ...             self.last = L.Linear(4, 2)
        ...     def forward(self, x):
        ...         return self.last(F.relu(self.first(x)) + x)
        >>> model = from_chain(Net(), np.ones((3, 4), np.float32))
        >>> len(model), str(model[3])
        (5, "pop('x', add)")
        >>> model.chain_names.in_chain('/4/W')
        '/last/W'
    """
    inputs = x if isinstance(x, tuple) else (x,)
    _check(chain, inputs, depth)
    name = type(chain).__name__
    forward = chain if forward is None else forward
    device = chain.device
    try:
        early_draws = _size(chain, forward, inputs)
        with preserved_state(chain), restored_random_state(device):
            if _is_list(chain, forward, depth):
                layers, sized = _listed_layers(chain), []
            else:
                examples = _record(chain, forward, inputs, depth)
                layers, sized = _layers(examples), examples[2:]
            _check_parameters(chain, layers)
            model = ChainLayers(*(layer for layer, _ in layers))
            if early_draws is not None:
                with alike_run(chain, train=True):
                    is_random = draws(
                        lambda: call_forward(forward, as_variables(inputs))
                    )
                model.early_draws = early_draws._replace(is_among_others=is_random)
            model.chain_names = ChainNames(
                {
                    position: path
                    for position, (layer, path) in enumerate(layers)
                    if path and model._positions[layer] == position
                }
            )
            compare(chain, forward, model, inputs, (True, False))
            for each in sized:
                compare(chain, forward, model, each.minibatch, (False,))
    except ChainError as error:
        raise ChainError(f"from_chain({name}): {error}") from error.__cause__
    return model


def _check(chain: Any, inputs: Sequence[Any], depth: int) -> None:
    if isinstance(chain, Divisible):
        raise TypeError(
            f"from_chain({type(chain).__name__}): it is a Divisible already"
        )
    if not isinstance(chain, (chainer.Chain, chainer.ChainList)):
        raise TypeError(f"from_chain: {chain!r} is neither a Chain nor a ChainList")
    if depth < 1:
        raise ValueError(f"from_chain: depth must be 1 at least, not {depth}")
    for array in inputs:
        if not isinstance(array, chainer.get_array_types()) or not array.size:
            raise ValueError(
                f"from_chain: x must be an array with samples along its first axis, or"
                f" a tuple of such arrays, not {array!r}"
            )


def _size(
    chain: chainer.Chain, forward: Callable[..., Any], inputs: Sequence[Any]
) -> EarlyDraws | None:
    """Calls links that get their sizes in their first call; returns their draws."""
    found = None
    if any(not param.is_initialized for param in chain.params()):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            variables = as_variables(inputs)
            found = draw_early(
                chain.namedparams(), lambda: call_forward(forward, variables)
            )
    for path, param in chain.namedparams():
        if not param.is_initialized:
            raise _belongs_to_no_layer(path)
    return found


def _layers(examples: Sequence[Example]) -> list[tuple[Layer, str]]:
    """Returns the layers, with the path in the chain of each that is a link."""
    recordings = [example.recording for example in examples]

    def make_layer(number: int, call: Call) -> Layer:
        if call.path:
            return call.callee
        return function_layer([Seen.of(each, number) for each in recordings])

    return line_up(recordings[0], make_layer)


def _is_list(chain: chainer.Chain, forward: Callable[..., Any], depth: int) -> bool:
    is_sequential = getattr(type(chain), "forward", None) is chainer.Sequential.forward
    return is_sequential and forward is chain and depth == 1


def _listed_layers(chain: chainer.Sequential) -> list[tuple[Layer, str]]:
    paths = link_paths(chain)
    return [(layer, paths.get(id(layer), "")) for layer in chain]


def _record(
    chain: chainer.Chain, forward: Callable[..., Any], inputs: tuple, depth: int
) -> list[Example]:
    """Returns the calls for minibatches of several sizes, those of the example first.

    The second minibatch has another number of samples. The others have other lengths,
    or other sizes of images, as far as the chain accepts them.
    """

    def run(minibatch: tuple) -> Example:
        with alike_run(chain, train=True):
            return Example(minibatch, record(chain, forward, minibatch, depth))

    def attempt(minibatch: tuple) -> Example | None:
        try:
            return run(minibatch)
        except ForwardError:
            return None

    first, other = run(inputs), run(tuple(map(_another_minibatch, inputs)))
    _check_alike(first.recording, other.recording, "another minibatch", "")
    sized = other_sizes(inputs, attempt)
    for each in sized:
        mine, theirs = first.recording.minibatch, each.recording.minibatch
        _check_alike(
            first.recording,
            each.recording,
            f"a minibatch of shape {theirs} than for one of shape {mine}",
            ". Put what depends on the size, such as a loop over the steps, into the"
            " forward of a link of its own",
        )
    return [first, other, *sized]


def _another_minibatch(x: Any) -> Any:
    """Returns one more sample, in reverse order, with other values if of floats."""
    xp = chainer.backend.get_array_module(x)
    more = xp.concatenate([x[::-1], x[:1]])
    return more / 2 if x.dtype.kind == "f" else more


def _check_alike(first: Recording, other: Recording, what: str, cure: str) -> None:
    for a, b in zip(first.calls, other.calls):
        if (type(a.callee), a.path, a.inputs) != (type(b.callee), b.path, b.inputs):
            raise ChainError(
                f"forward goes another way for {what}: it calls {a.title} for one, and"
                f" {b.title} in its place or of other values for another{cure}"
            )
    if len(first.calls) != len(other.calls) or first.output != other.output:
        raise ChainError(
            f"forward goes another way for {what}: of {len(first.calls)} calls for"
            f" one, and of {len(other.calls)} for another{cure}"
        )


def _check_parameters(
    chain: chainer.Chain, layers: Sequence[tuple[Layer, str]]
) -> None:
    """Checks that each parameter and persistent value belongs to a layer."""
    links = [layer for layer, path in layers if path]
    theirs = {id(param) for link in links for param in link.params()}
    for path, param in chain.namedparams():
        if id(param) not in theirs:
            raise _belongs_to_no_layer(path)
    called = {id(below) for link in links for below in link.links()}
    for path, link in chain.namedlinks():
        if link._persistent and id(link) not in called:
            name = f"{path.rstrip('/')}/{sorted(link._persistent)[0]}"
            raise ChainError(
                f"the persistent value {name} belongs to no link that forward calls,"
                f" and would be in no file: put it into a link with what uses it"
            )


def _belongs_to_no_layer(path: str) -> ChainError:
    return ChainError(
        f"the parameter {path} belongs to no link that forward calls, and so to no"
        f" layer: leave the link out of the chain, or call it"
    )
