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
    """

    paths: tuple[str, ...]
    state: int

    @property
    def names(self) -> str:
        """The first paths, as text."""
        more = f" and {len(self.paths) - 3} others" if len(self.paths) > 3 else ""
        return ", ".join(self.paths[:3]) + more

    def warning(self) -> str | None:
        """Returns a warning if something has drawn from the generator since."""
        if self.state == _state():
            return None
        return (
            f"from_chain drew the weights of {self.names}, and the script has drawn"
            f" from NumPy's generator since. A serial script draws them in its first"
            f" minibatch, so its losses are other ones. Make the iterators before"
            f" from_chain for the same losses"
        )


def draw_early(
    params: Iterable[tuple[str, chainer.Parameter]], draw: Callable[[], Any]
) -> EarlyDraws | None:
    """Draws parameters that are not initialized yet.

    Args:
        params: Paths and parameters.
        draw: Initializes them when it is called.

    Returns:
        EarlyDraws or None: ``None`` if nothing was drawn from NumPy's generator, or if
        nobody has seeded it.

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


def _state() -> int:
    """Returns a checksum of the state of NumPy's global generator."""
    state = np.random.get_state(legacy=False)
    inner = state["state"]
    rest = repr((inner["pos"], state["has_gauss"], state["gauss"])).encode()
    return zlib.crc32(rest, zlib.crc32(inner["key"].tobytes()))


def _is_seeded() -> bool:
    """Returns whether somebody has seeded the generator; before NumPy 1.25, true."""
    find = getattr(np.random, "get_bit_generator", None)
    generator = find() if find is not None else None
    return getattr(generator, "seed_seq", None) is None
