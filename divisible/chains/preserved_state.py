"""Runs of a chain that do not change it, so that each begins with the same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import chainer


@contextmanager
def preserved_state(chain: chainer.Link) -> Iterator[None]:
    """Restores a chain's gradients, running averages and other attributes at the end.

    Content of lists and other containers in links is not restored.

    Args:
        chain (chainer.Link): The chain; its parameters have their sizes.
    """
    attributes = [(link, dict(vars(link))) for link in chain.links()]
    arrays = [
        (value, value.copy())
        for _, values in attributes
        for value in values.values()
        if isinstance(value, chainer.get_array_types())
    ]
    gradients = [(param, param.grad) for param in chain.params()]
    try:
        yield
    finally:
        for link, values in attributes:
            vars(link).clear()
            vars(link).update(values)
        for array, values in arrays:
            array[...] = values
        for param, gradient in gradients:
            param.cleargrad()
            if gradient is not None:
                param.grad = gradient


@contextmanager
def alike_run(chain: chainer.Link, train: bool, seed: int = 0) -> Iterator[None]:
    """Begins a run with the same state, random numbers and mode, without gradients.

    Args:
        chain (chainer.Link): The chain. It is restored at the end.
        train (bool): Value of ``chainer.config.train``.
        seed (int): Seed of the random numbers.
    """
    with preserved_state(chain), chainer.using_config("train", train):
        chain.cleargrads()
        chain.xp.random.seed(seed)
        with chainer.force_backprop_mode():
            yield


@contextmanager
def changed_parameters(chain: chainer.Link) -> Iterator[None]:
    """Gives all parameters other values, none of them 0, and restores them at the end.

    Args:
        chain (chainer.Link): The chain; its parameters have their sizes.
    """
    before = {id(param): (param, param.array.copy()) for param in chain.params()}
    for param, _ in before.values():
        if param.dtype.kind == "f":
            param.array *= param.dtype.type(0.75)
            # A mask that a forward applies shows on weights that it has masked before.
            param.array[param.array == 0] = 0.01
    try:
        yield
    finally:
        for param, array in before.values():
            param.array[...] = array
