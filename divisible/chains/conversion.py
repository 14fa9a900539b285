"""From a chain of Chainer to a list of layers that computes the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable

import chainer
import numpy as np

from divisible.chains.calls import (
    Call,
    ChainError,
    Recording,
    as_variables,
    call_forward,
    link_paths,
    record,
)
from divisible.chains.function_layers import function_layer
from divisible.chains.line import line_up
from divisible.chains.names import ChainNames
from divisible.chains.preserved_state import preserved_state
from divisible.layer_list import Layer
from divisible.model import Divisible
from divisible.random_streams import restored_random_state


class ChainLayers(Divisible):
    """The layers that :func:`from_chain` found.

    Attributes:
        chain_names (ChainNames): For each layer that is a link, its path in the chain.
    """

    chain_names = ChainNames({})


def from_chain(
    chain: chainer.Chain,
    x: Any,
    *,
    depth: int = 1,
    forward: Callable[..., Any] | None = None,
) -> ChainLayers:
    """Makes a list of layers of a chain with a ``forward``.

    The chain runs on ``x``, and is watched. Each child that it calls becomes a layer:
    the very same link, not a copy. So does each function that it calls between two of
    them. What is used later than by the next call is stashed and popped::

        def forward(self, x):               0  stash('x')
            h = F.relu(self.conv1(x))       1  conv1           '/conv1/W' is '/1/W'
            return self.conv2(h) + x        2  relu
                                            3  conv2           '/conv2/W' is '/3/W'
                                            4  pop('x', add)

    It runs on a minibatch of another size, too. What depends on that size is refused,
    as it would be wrong in a microbatch; shapes may follow it. Before the layers are
    returned, their outputs in training and in test, and the gradients of all
    parameters, are compared with the chain's. The chain is left as it was, except that
    links that are sized at their first call have had it, in test mode; they draw from
    NumPy's generator as ever.

    A chain that makes its parameters here needs the memory for all of them on each
    rank; one that is too large for that is written as a list, in
    :func:`~divisible.deferred_init`.

    Args:
        chain (chainer.Chain): The model without the loss: the predictor, not the
            ``L.Classifier``. Of a :class:`chainer.Sequential` the layers are taken as
            they are.
        x (array or tuple of arrays): A small minibatch, samples along the first axis.
        depth (int): How many levels of links are taken apart. With 2 the children of
            the children become layers, and so does a child without children.
        forward: The function of ``x`` to take apart, if that is not the chain's call:
            ``chain.predict``, or ``lambda x: chain(x, layers=['fc'])['fc']``.

    Returns:
        ChainLayers: A :class:`~divisible.Divisible`, whose ``chain_names`` tell the
        chain's paths: ``chain_names.in_chain('/3/W')`` is ``'/conv2/W'``.

    Raises:
        ValueError: If what forward calls cannot be put in a line, with the child or
            function and the reason.
        TypeError: If it is no chain, or a ``Divisible`` already.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
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
        _size(chain, forward, inputs)
        with preserved_state(chain), restored_random_state(device):
            layers = _layers(chain, forward, inputs, depth)
            _check_parameters(chain, layers)
            model = ChainLayers(*(layer for layer, _ in layers))
            model.chain_names = ChainNames(
                {
                    position: path
                    for position, (layer, path) in enumerate(layers)
                    if path and model._positions[layer] == position
                }
            )
            _compare(chain, forward, model, inputs)
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
) -> None:
    """Lets links that are sized at their first call have it."""
    if any(not param.is_initialized for param in chain.params()):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            call_forward(forward, as_variables(inputs))
    for path, param in chain.namedparams():
        if not param.is_initialized:
            raise _belongs_to_no_layer(path)


def _layers(
    chain: chainer.Chain, forward: Callable[..., Any], inputs: Sequence[Any], depth: int
) -> list[tuple[Layer, str]]:
    """Returns the layers, and the paths in the chain of those that are links."""
    is_list = getattr(type(chain), "forward", None) is chainer.Sequential.forward
    if is_list and forward is chain and depth == 1:
        paths = link_paths(chain)
        return [(layer, paths.get(id(layer), "")) for layer in chain]
    recordings = []
    for each in (inputs, tuple(map(_another_minibatch, inputs))):
        with _run(chain, train=True):
            recordings.append(record(chain, forward, each, depth))
    first, other = recordings
    _check_alike(first, other)

    def make_layer(number: int, call: Call) -> Layer:
        if call.path:
            return call.callee
        return function_layer(call, other.calls[number])

    return line_up(first, make_layer)


def _another_minibatch(x: Any) -> Any:
    """Returns one more sample, in another order, and other values where they may be."""
    xp = chainer.backend.get_array_module(x)
    more = xp.concatenate([x[::-1], x[:1]])
    return more / 2 if x.dtype.kind == "f" else more


def _check_alike(first: Recording, other: Recording) -> None:
    for a, b in zip(first.calls, other.calls):
        if (type(a.callee), a.path, a.inputs) != (type(b.callee), b.path, b.inputs):
            raise ChainError(
                f"forward goes another way for another minibatch: it calls {a.title}"
                f" for one, and {b.title} in its place or of other values for another"
            )
    if len(first.calls) != len(other.calls) or first.output != other.output:
        raise ChainError(
            f"forward goes another way for another minibatch: of {len(first.calls)}"
            f" calls for one, and of {len(other.calls)} for another"
        )


def _check_parameters(
    chain: chainer.Chain, layers: Sequence[tuple[Layer, str]]
) -> None:
    """Makes sure that each parameter and persistent value belongs to a layer."""
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


@contextmanager
def _run(chain: chainer.Chain, train: bool) -> Iterator[None]:
    """Runs begin alike in here: state, gradients, random numbers, configuration."""
    with preserved_state(chain), chainer.using_config("train", train):
        chain.cleargrads()
        chain.xp.random.seed(0)
        with chainer.force_backprop_mode():
            yield


def _compare(
    chain: chainer.Chain,
    forward: Callable[..., Any],
    model: ChainLayers,
    inputs: Sequence[Any],
) -> None:
    """Makes sure that the layers compute what the chain computes."""
    for train in (True, False):
        results = []
        for each in (forward, model):
            with _run(chain, train):
                y = each(*inputs)
                results.append((y.array, _gradients(chain, y)))
        (y, gradients), (other, others) = results
        mode = f"with chainer.config.train = {train}"
        _check_close(f"the output {mode}", y, other)
        scale = max((float(abs(g).max()) for g in gradients.values()), default=0.0)
        for path in gradients.keys() | others.keys():
            what = f"the gradient of {path} {mode}"
            if path not in gradients or path not in others:
                _differs(what)
            _check_close(what, gradients[path], others[path], scale)


def _gradients(chain: chainer.Chain, y: Any) -> dict[str, Any]:
    if y.creator is not None and y.dtype.kind == "f":
        # Not all alike: a softmax would give nothing for that.
        weights = chain.xp.cos(chain.xp.arange(y.size))
        y.grad = weights.reshape(y.shape).astype(y.dtype)
        y.backward()
    found = chain.namedparams()
    return {path: p.grad.copy() for path, p in found if p.grad is not None}


def _check_close(what: str, a: Any, b: Any, scale: float = 0.0) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
        _differs(what)
    a, b = map(chainer.backends.cuda.to_cpu, (a, b))
    if a.dtype.kind != "f":
        if not np.array_equal(a, b):
            _differs(what)
        return
    finite = np.abs(a[np.isfinite(a)].astype(np.float64))
    size = max(scale, finite.max(initial=0.0))
    # Sums may be added up in another order where branches meet.
    tolerance = size * float(np.finfo(a.dtype).eps) ** 0.5
    if not np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True):
        _differs(what)


def _differs(what: str) -> None:
    raise ChainError(
        f"{what} is not the chain's: forward does something that neither a call of a"
        f" link nor one of Chainer's functions shows, such as unchain(), a change in"
        f" place, or another way in test mode"
    )
