"""Weights that are drawn before the first minibatch, which a serial script draws in it.

::

    serial script        from_chain last      from_chain first
    seed                 seed                 seed
    iterator shuffles    iterator shuffles    from_chain draws weights
    first minibatch      from_chain           iterator shuffles
      draws weights        draws weights
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np


class EarlyDraws(NamedTuple):
    """Weights that were drawn, and NumPy's global generator afterwards.

    Attributes:
        paths: Paths of the parameters.
        state: Checksum of the generator's state after the last of them.
        is_among_others: Whether the model also draws other numbers in training, such as
            for dropout.
    """

    paths: tuple[str, ...]
    state: int
    is_among_others: bool = False

    @property
    def names(self) -> str:
        """The first paths, as text."""
        more = f" and {len(self.paths) - 3} others" if len(self.paths) > 3 else ""
        return ", ".join(self.paths[:3]) + more

    def warning(self) -> str | None:
        """Returns a warning if other code has drawn from the generator since."""
        drew = f"from_chain drew the weights of {self.names}"
        if self.state != _state():
            return (
                f"{drew}, and the script has drawn from NumPy's generator since. A"
                f" serial script draws them in its first minibatch, so its losses are"
                f" other ones. Make the iterators before from_chain for the same losses"
            )
        if self.is_among_others:
            return (
                f"{drew} in test mode. A serial script draws them in its first"
                f" minibatch, between the random numbers of dropout or other layers, so"
                f" its weights and losses are other ones. Call its model once in test"
                f" mode before it trains for the same weights"
            )
        return None


def draw_early(
    params: Iterable[tuple[str, chainer.Parameter]], draw: Callable[[], Any]
) -> EarlyDraws | None:
    """Draws parameters that are not initialized yet.

    Args:
        params: Paths and parameters.
        draw: Function that initializes the parameters.

    Returns:
        EarlyDraws or None: ``None`` if nothing was drawn from NumPy's generator, or if
        the generator was never seeded.

    Example:
        >>> import chainer.links as L
        >>> np.random.seed(0)
        >>> link, x = L.Linear(None, 2), np.ones((1, 3), np.float32)
        >>> draws = draw_early(link.namedparams(), lambda: link(x))
        >>> draws.paths, draws.warning()
        (('/W',), None)
        >>> number = np.random.rand()
        >>> draws.warning()[:36]
        'from_chain drew the weights of /W, a'
    """
    paths = tuple(path for path, param in params if not param.is_initialized)
    is_seeded, before = _is_seeded(), _state()
    draw()
    after = _state()
    return EarlyDraws(paths, after) if is_seeded and after != before else None


def draws(call: Callable[[], Any]) -> bool:
    """Returns whether a call draws from NumPy's generator."""
    before = _state()
    call()
    return _state() != before


def _state() -> int:
    """Returns a checksum of the state of NumPy's global generator."""
    state = np.random.get_state(legacy=False)
    inner = state["state"]
    rest = repr((inner["pos"], state["has_gauss"], state["gauss"])).encode()
    return zlib.crc32(rest, zlib.crc32(inner["key"].tobytes()))


def _is_seeded() -> bool:
    """Returns whether the generator was seeded; before NumPy 1.25 always ``True``."""
    find = getattr(np.random, "get_bit_generator", None)
    generator = find() if find is not None else None
    return getattr(generator, "seed_seq", None) is None
