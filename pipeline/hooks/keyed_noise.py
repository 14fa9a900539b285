"""Noise on gradients that does not depend on the cut."""

from __future__ import annotations

from typing import Any, Callable

import chainer

from divisible.random_streams import RandomKey, named_stream


class KeyedNoise:
    """The function of a ``GradientNoise``, each parameter with a stream of its own.

    Chainer's draws from the global generator of a rank, so what a parameter gets would
    depend on which other ones are there, and copies of a tied one would get different
    noise. In its place::

        stream of a parameter = f(seed, minibatch, path of the parameter)

    Args:
        noise_func: The hook's own.
        key (RandomKey): The seed, and the minibatch's number.
        path_of: Returns the path of an update rule's parameter; ``None`` for one that
            is not the pipeline's.
    """

    def __init__(
        self,
        noise_func: Callable,
        key: RandomKey,
        path_of: Callable[[Any], str | None],
    ) -> None:
        self.noise_func = noise_func
        self.key = key
        self._path_of = path_of

    def __call__(self, xp: Any, shape: tuple, dtype: Any, hook: Any, rule: Any) -> Any:
        """Returns the noise for the gradient of one parameter, as the hook calls it."""
        path = self._path_of(rule)
        if path is None:
            return self.noise_func(xp, shape, dtype, hook, rule)
        device = chainer.backend.get_device_from_array(xp.empty(0, dtype))
        with named_stream(self.key, path, device):
            return self.noise_func(xp, shape, dtype, hook, rule)
