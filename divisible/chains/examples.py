"""The minibatches in which a chain is recorded, and what their calls have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer

from divisible.chains.anchors import anchored
from divisible.chains.apart import Apart
from divisible.chains.calls import ChainError, ForwardError, Recording
from divisible.chains.constants import settled
from divisible.chains.preserved_state import alike_run, changed_parameters
from divisible.chains.recording import run
from divisible.chains.resolving import resolve
from divisible.chains.sizes import Example, other_sizes
from divisible.chains.written_weights import Weights


def recorded_examples(
    chain: chainer.Chain,
    forward: Callable[..., Any],
    inputs: tuple,
    apart: Apart,
    as_variables: bool,
) -> list[Example]:
    """Returns the calls for minibatches of several sizes, those of the example first.

    The second minibatch has another number of samples. The others have other lengths,
    or other sizes of images, as far as the chain accepts them.

    Args:
        chain (chainer.Chain): The chain; its parameters have their sizes.
        forward: The function of the chain to take apart.
        inputs: Arrays of the example.
        apart (Apart): The links that are taken apart.
        as_variables (bool): Whether the forward gets variables in place of arrays.

    Raises:
        UnlikeLayerError: If no layer can make a call of a link with children.
        ChainError: If the forward goes another way for another minibatch, or makes
            another call that no layer can make.
    """

    def recorded(
        minibatch: tuple, seed: int = 0, weights: Weights | None = None
    ) -> Example:
        with alike_run(chain, train=True, seed=seed):
            noted = run(chain, forward, minibatch, apart, as_variables, weights)
            return Example(minibatch, resolve(chain, noted))

    def attempt(minibatch: tuple) -> Example | None:
        try:
            return recorded(minibatch)
        except ForwardError:
            return None

    first = recorded(inputs)
    # A constant is the same with other weights and other random numbers.
    more = tuple(map(_another_minibatch, inputs))
    varied = tuple(map(_varied, more))
    with changed_parameters(chain):
        try:
            try:
                other = recorded(varied, 1, Weights(chain))
            except ForwardError:
                # A forward may accept these integers only.
                other = recorded(more, 1, Weights(chain))
        except ForwardError as error:
            shapes = " and ".join(str(x.shape) for x in more)
            raise ForwardError(
                f"the forward that accepts x fails for a minibatch of shape {shapes},"
                f" which has more samples: {error}"
            ) from error.__cause__
    cure = (
        ". Put what depends on the samples, such as a loop over them, into the forward"
        " of a link of its own"
    )
    _check_alike(first.recording, other.recording, "another minibatch", cure)
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
    found = [first, other, *sized]
    recordings = settled([each.recording for each in found])
    _check_used(recordings[0])
    recordings = anchored(recordings)
    return [Example(each.minibatch, r) for each, r in zip(found, recordings)]


def _another_minibatch(x: Any) -> Any:
    """Returns more samples, in reverse order, with other values if of floats.

    There are one more than twice as many, so that half of their number is another one.
    """
    xp = chainer.backend.get_array_module(x)
    more = xp.concatenate([x[::-1], x, x[:1]])
    return more / 2 if x.dtype.kind == "f" else more


def _varied(x: Any) -> Any:
    """Returns a minibatch whose samples differ, as those of zeros do not.

    What a forward makes of equal samples may be taken for a constant.
    """
    if not (x == x[:1]).all():
        return x
    xp = chainer.backend.get_array_module(x)
    if x.dtype.kind == "f":
        size = abs(x).max() / 4 or 1
        steps = abs(xp.cos(xp.arange(x.size))).reshape(x.shape)
        return (x + size * steps).astype(x.dtype)
    if x.dtype.kind == "b":
        return x ^ (xp.arange(x.size) % 2 == 0).reshape(x.shape)
    if (x == x.ravel()[0]).all():
        # The largest known word has none above it.
        other = x - 1 if x.ravel()[0] > 0 else x + 1
        return xp.where((xp.arange(x.size) % 2 == 0).reshape(x.shape), x, other)
    rolled = x.copy()
    rolled[1::2] = xp.roll(x[:1].ravel(), 1).reshape(x[:1].shape)
    return rolled


def _check_alike(first: Recording, other: Recording, what: str, cure: str) -> None:
    for a, b in zip(first.calls, other.calls):
        if not a.is_like(b):
            raise ChainError(
                f"forward goes another way for {what}: it calls {a.title} for one, and"
                f" {b.title} in its place or of other values for another{cure}",
                a.place,
            )
    if len(first.calls) != len(other.calls) or first.outputs != other.outputs:
        raise ChainError(
            f"forward goes another way for {what}: of {len(first.calls)} calls for"
            f" one, and of {len(other.calls)} for another{cure}"
        )


def _check_used(recording: Recording) -> None:
    for call in recording.unused:
        raise ChainError(
            f"what {call.title} returns is not used for what forward returns: its"
            f" parameters would have no gradient. Leave the call out, or let forward"
            f" use the variable that it returns, and not its array. A loop over the"
            f" steps of a link that keeps a state, as L.LSTM does, belongs into a link"
            f" of its own",
            call.place,
        )
