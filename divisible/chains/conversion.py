"""Converts a chain of Chainer to a list of layers with the same results."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.chains.apart import Apart, UnlikeLayerError
from divisible.chains.arguments import Seen
from divisible.chains.calls import (
    Call,
    ChainError,
    ForwardError,
    link_paths,
    short,
)
from divisible.chains.comparison import compare
from divisible.chains.examples import recorded_examples
from divisible.chains.function_layers import function_layer
from divisible.chains.line import line_up
from divisible.chains.modes import where_modes_differ
from divisible.chains.names import ChainNames
from divisible.chains.own_calls import own_class
from divisible.chains.preserved_state import alike_run, preserved_state
from divisible.chains.recording import call_forward, given_to
from divisible.chains.sizes import Example
from divisible.early_draws import EarlyDraws, draw_early, draws
from divisible.layer_list import Layer
from divisible.model import Divisible
from divisible.random_streams import restored_random_state

#: Held by the thread whose call runs. A call replaces functions of NumPy and of classes
#: of links, and seeds NumPy's generator, all of which threads have in common.
_ONE_CALL = threading.RLock()


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

    A child that defines ``__call__`` is called as one with ``forward``. No layer can
    call a child with a number or a flag, or return more than variables. Such a child is
    taken apart: the links that it calls become layers.

    The chain gets arrays, as from an updater. Operations of NumPy on them become layers
    as well, such as ``x >= 0``, and so do constants, such as ``xp.zeros(...)``. On a
    GPU the chain gets variables, because operations of CuPy are not recorded.

    The chain also runs on a minibatch with another number of samples, and on longer
    sequences and larger images if it accepts them. Arguments that depend on these sizes
    are refused, because they would be wrong in another minibatch, or in a microbatch.
    Arguments that are sizes of an input follow it: ``F.reshape(h, (len(x), -1))``,
    ``F.average_pooling_2d(h, h.shape[2:])``, ``F.broadcast_to(h, x.shape)``. Before the
    layers are returned, they are compared with the chain: their outputs in training and
    in test mode, in two calls, and the gradients of all parameters. The chain is left
    as it was. Only links that get their sizes in their first call have been called, in
    test mode.

    Such links, as ``L.Linear(None, 10)``, draw their weights here, and in a serial
    script in its first minibatch. For the weights of the serial script, make the
    iterators, which shuffle, before this call. Otherwise the first step of a pipeline
    warns, if NumPy's generator was seeded.

    A chain that makes its parameters here needs the memory for all of them on each
    rank. Write a chain that is too large for that as a list, in
    :func:`~divisible.deferred_init`.

    Calls of several threads run one after the other. Let no other thread draw from
    NumPy's global generator meanwhile: a layer such as dropout would draw other numbers
    than the chain, and the chain would be refused.

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
            the child or function, the reason, and the line of the user's code.
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
    with _ONE_CALL:
        return _converted(chain, inputs, depth, chain if forward is None else forward)


def _converted(
    chain: chainer.Chain,
    inputs: Sequence[Any],
    depth: int,
    forward: Callable[..., Any],
) -> ChainLayers:
    name = type(chain).__name__
    device = chain.device
    apart = Apart(depth)
    is_lined_up = False
    try:
        early_draws, as_variables = _size(chain, forward, inputs)
        with preserved_state(chain), restored_random_state(device):
            if _is_list(chain, forward, depth):
                layers, sized = _listed_layers(chain), []
            else:
                examples = None
                while examples is None:
                    try:
                        examples = recorded_examples(
                            chain, forward, inputs, apart, as_variables
                        )
                    except UnlikeLayerError as error:
                        apart = apart.opening(error)
                layers, sized = _layers(examples), examples[2:]
            _check_parameters(chain, layers)
            is_lined_up = True
            model = ChainLayers(*(layer for layer, _ in layers))
            if early_draws is not None:
                with alike_run(chain, train=True):
                    given = given_to(inputs, as_variables)
                    is_random = draws(lambda: call_forward(forward, given))
                model.early_draws = early_draws._replace(is_among_others=is_random)
            model.chain_names = ChainNames(
                {
                    position: path
                    for position, (layer, path) in enumerate(layers)
                    if path and model._positions[layer] == position
                }
            )

            def call(*x: Any) -> Any:
                return forward(*given_to(x, as_variables))

            compare(chain, call, model, inputs, (True,))
            try:
                compare(chain, call, model, inputs, (False,))
            except ChainError as error:
                how = apart, as_variables
                place = where_modes_differ(chain, forward, inputs, *how)
                raise ChainError(str(error), place) from error.__cause__
            for each in sized:
                compare(chain, call, model, each.minibatch, (False,))
    except ChainError as error:
        # Another call of a link that was taken apart may be what to change.
        reason = error if is_lined_up else apart.explained(error)
        raise ChainError(f"from_chain({name}): {reason}") from error.__cause__
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
                f" a tuple of such arrays, one for each input, not {short(array)}. Give"
                f" sequences of several lengths as one array, filled up by"
                f" chainer.dataset.concat_examples(xs, padding=-1)"
            )


def _size(
    chain: chainer.Chain, forward: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[EarlyDraws | None, bool]:
    """Calls links that get their sizes in their first call.

    Returns:
        What they drew, and whether the forward accepts variables only.
    """
    # Operations of NumPy on arrays are recorded, and operations of CuPy are not.
    # Variables have most of them.
    orders = (False, True) if chain.xp is np else (True, False)
    accepted = orders[0]

    def call() -> None:
        nonlocal accepted
        accepted = _accepted(forward, inputs, orders)

    found = None
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        if any(not param.is_initialized for param in chain.params()):
            found = draw_early(chain.namedparams(), call)
        else:
            with preserved_state(chain), restored_random_state(chain.device):
                call()
    for path, param in chain.namedparams():
        if not param.is_initialized:
            raise _belongs_to_no_layer(path)
    return found, accepted


def _accepted(
    forward: Callable[..., Any], inputs: Sequence[Any], orders: Sequence[bool]
) -> bool:
    """Calls a forward with arrays and with variables, until one of them runs."""
    first = None
    for as_variables in orders:
        try:
            call_forward(forward, given_to(inputs, as_variables))
        except ForwardError as error:
            first = first or error
        else:
            return as_variables
    raise first


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
    is_own = own_class(type(chain)) is not None
    return is_sequential and not is_own and forward is chain and depth == 1


def _listed_layers(chain: chainer.Sequential) -> list[tuple[Layer, str]]:
    paths = link_paths(chain)
    return [(layer, paths.get(id(layer), "")) for layer in chain]


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
