"""Whether the kernels are in force."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class _Everywhere:
    """The switch for all threads."""

    on = os.environ.get("CHAINER_KERNELS", "1") != "0"


class _Here(threading.local):
    """How many blocks of this thread are left to Chainer, one within the other."""

    n_disabled = 0


everywhere = _Everywhere()
_here = _Here()


def is_on() -> bool:
    """Returns whether the kernels are in force in this thread."""
    return everywhere.on and not _here.n_disabled


def is_ours() -> bool:
    """Returns whether kernels are in force, and iDeep's arithmetic is not asked for.

    Code that computes in place of Chainer calls this first.
    """
    # The switch itself is there before Chainer is.
    import chainer

    return is_on() and chainer.config.use_ideep == "never"


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Leaves a block to Chainer's own arithmetic, in this thread."""
    _here.n_disabled += 1
    try:
        yield
    finally:
        _here.n_disabled -= 1
