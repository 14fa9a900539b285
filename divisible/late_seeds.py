"""Seeds of NumPy's global generator that wait until something draws.

To seed the generator takes as long as to call a small layer, to keep its state and to
give it back takes ten times as long, and most layers draw nothing. So a seed waits::

    layers          Linear      dropout                     Linear
    seed            waits       waits                       waits
    first draw                  keeps the user's state,
                                seeds, draws
    end of block                                            gives the user's state back

NumPy's functions hold the lock of their bit generator while they draw. Here that lock
seeds when it is acquired and a seed waits. For this :func:`waiting_seeds` puts a
generator of its own class in the place of NumPy's, once, in the same state: what is
drawn is the same bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


class _Lock:
    """The lock of a generator, which seeds it when it is acquired.

    Args:
        generator (MT19937): The generator.
    """

    def __init__(self, generator: MT19937) -> None:
        self._generator = generator
        # To keep the state and to seed may acquire it once more.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._generator.seed_now()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


# NumPy writes the name of the class into states, and compares it when it reads them.
class MT19937(np.random.MT19937):
    """NumPy's bit generator, with a seed that waits.

    Attributes:
        waiting (sequence of ints or None): The words of the seed that waits.
    """

    def __init__(self, *seed: Any) -> None:
        self.waiting: Sequence[int] | None = None
        self._kept: dict[str, Any] | None = None
        self._n_blocks = 0
        self._own_lock = _Lock(self)
        super().__init__(*seed)

    @property
    def lock(self) -> _Lock:
        """What NumPy's functions hold while they draw."""
        return self._own_lock

    def seed_now(self) -> None:
        """Seeds by the words that wait, if any do."""
        if self.waiting is not None:
            words, self.waiting = self.waiting, None
            self._keep()
            np.random.seed(words)

    def _keep(self) -> None:
        """Keeps the user's state, before it is changed first in a block."""
        if self._n_blocks and self._kept is None:
            self._kept = np.random.get_state(legacy=False)

    @property
    def state(self) -> dict[str, Any]:
        """The state, which is that of the seed that waits."""
        self.seed_now()
        return np.random.MT19937.state.__get__(self)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self.waiting = None
        self._keep()
        np.random.MT19937.state.__set__(self, value)

    def _legacy_seeding(self, seed: Any) -> None:
        """Is called by ``numpy.random.seed``."""
        self.waiting = None
        self._keep()
        super()._legacy_seeding(seed)

    def begin(self) -> None:
        """Begins a block after which the user's state is to be what it is now."""
        self._n_blocks += 1

    def end(self) -> None:
        """Ends a block; after the last one, gives the user's state back."""
        self._n_blocks -= 1
        if self._n_blocks:
            # Of another thread.
            return
        self.waiting, kept, self._kept = None, self._kept, None
        if kept is not None:
            np.random.set_state(kept)


class Seeds:
    """Seeds of NumPy's global generator where none can wait: before NumPy 1.25."""

    def __setattr__(self, name: str, words: Sequence[int]) -> None:
        np.random.seed(words)


def _installed() -> MT19937 | None:
    """Returns the global generator, ours; ``None`` where the user has another kind."""
    if not hasattr(np.random, "get_bit_generator"):
        return None
    there = np.random.get_bit_generator()
    if isinstance(there, MT19937):
        return there
    if type(there) is not np.random.MT19937:
        return None
    state, ours = np.random.get_state(legacy=False), MT19937(0)
    if there.seed_seq is None:
        # Whoever asks is told that the user has seeded it.
        ours._legacy_seeding(0)
    np.random.set_bit_generator(ours)
    np.random.set_state(state)
    return ours


@contextmanager
def waiting_seeds() -> Iterator[MT19937 | Seeds]:
    """Lets seeds wait, and gives the global generator back as it was.

    Yields:
        An object whose attribute ``waiting`` is to be set to the words of a seed, each
        of 32 bits. What is drawn next is drawn by the last ones.

    Example:
        >>> np.random.seed(0)
        >>> with waiting_seeds() as seeds:
        ...     seeds.waiting = [1, 2]
        ...     first = np.random.rand()
        ...     seeds.waiting = [1, 2]
        ...     first == np.random.rand()
        True
        >>> following = np.random.rand()
        >>> np.random.seed(0)
        >>> following == np.random.rand()
        True
    """
    generator = _installed()
    if generator is not None:
        generator.begin()
        try:
            yield generator
        finally:
            generator.end()
        return
    state = np.random.get_state(legacy=False)
    try:
        yield Seeds()
    finally:
        np.random.set_state(state)
