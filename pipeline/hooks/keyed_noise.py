"""Noise on gradients that does not depend on the cut."""

from __future__ import annotations

from typing import Any, Callable

import chainer

from divisible.random_streams import RandomKey, named_stream


class KeyedNoise:
    """The function of a ``GradientNoise``, with a random stream per parameter.

    Chainer's function draws from the global generator of a rank. The noise of a
    parameter would then depend on the other parameters there, and copies of a tied
    parameter would get different noise. Instead::

        stream of a parameter = f(seed, minibatch, path of the parameter)

    Args:
        noise_func: The hook's own function.
        key (RandomKey): The seed, and the number of the minibatch.
        path_of: Returns the path of an update rule's parameter; ``None`` for a
            parameter outside the pipeline.
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
        """Returns the noise for one parameter's gradient; called by the hook."""
        path = self._path_of(rule)
        if path is None:
            return self.noise_func(xp, shape, dtype, hook, rule)
        device = chainer.backend.get_device_from_array(xp.empty(0, dtype))
        with named_stream(self.key, path, device):
            return self.noise_func(xp, shape, dtype, hook, rule)
