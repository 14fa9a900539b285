"""Seeds of NumPy's global generator that wait until a layer draws.

Seeding the generator takes as long as calling a small layer. Saving its state and
restoring it takes ten times as long, and most layers draw nothing. So a seed waits::

    layers          Linear      dropout                     Linear
    seed            waits       waits                       waits
    first draw                  keeps the user's state,
                                seeds, draws
    end of block                                            gives the user's state back

NumPy's functions hold the lock of their bit generator while they draw. The lock in this
module seeds when it is acquired while a seed waits. To install it,
:func:`waiting_seeds` replaces NumPy's generator once by one of its own class, in the
same state. All draws are the same bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

# NumPy's own. A user who installs another one may draw from that elsewhere as well.
_FIRST = getattr(np.random, "get_bit_generator", lambda: None)()


class _Lock:
    """The lock of a generator, which seeds it when it is acquired.

    Args:
        generator (MT19937): The generator.
    """

    def __init__(self, generator: MT19937) -> None:
        self._generator = generator
        # Saving the state and seeding may acquire it once more.
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


# The name of the class is in NumPy's states, and compared when they are loaded.
class MT19937(np.random.MT19937):
    """NumPy's bit generator, with a seed that waits.

    Attributes:
        waiting (sequence of ints or None): The waiting seed, in words of 32 bits.
    """

    def __init__(self, *seed: Any) -> None:
        self.waiting: Sequence[int] | None = None
        self._kept: dict[str, Any] | None = None
        self._n_blocks, self._is_keeping = 0, False
        self._own_lock = _Lock(self)
        super().__init__(*seed)

    @property
    def lock(self) -> _Lock:
        """The lock that NumPy's functions hold while they draw."""
        return self._own_lock

    def seed_now(self) -> None:
        """Saves the user's state, and seeds with the waiting words, if any."""
        words, self.waiting = self.waiting, None
        self._keep()
        if words is not None:
            np.random.seed(words)

    def _keep(self) -> None:
        """Saves the user's state before the first change in a block."""
        if not self._n_blocks or self._kept is not None or self._is_keeping:
            return
        # NumPy acquires the lock to read the state.
        self._is_keeping = True
        try:
            self._kept = np.random.get_state(legacy=False)
        finally:
            self._is_keeping = False

    @property
    def state(self) -> dict[str, Any]:
        """The state after the waiting seed, if there is one."""
        if self.waiting is not None:
            self.seed_now()
        return np.random.MT19937.state.__get__(self)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self.waiting = None
        self._keep()
        np.random.MT19937.state.__set__(self, value)

    def _legacy_seeding(self, seed: Any) -> None:
        """Seeds for ``numpy.random.seed``, and drops a waiting seed."""
        self.waiting = None
        self._keep()
        super()._legacy_seeding(seed)

    def random_raw(self, *arguments: Any) -> Any:
        """Draws words; NumPy's method does not acquire the lock."""
        with self.lock:
            return super().random_raw(*arguments)

    def __reduce__(self) -> tuple:
        """Pickles and copies as NumPy's own, which can be read without this package."""
        make, arguments, *rest = super().__reduce__()
        kinds = [np.random.MT19937 if it is type(self) else it for it in arguments]
        return make, tuple(kinds), *rest

    def begin(self) -> None:
        """Begins a block, after which the user's state is restored."""
        self._n_blocks += 1

    def end(self) -> None:
        """Ends a block; the end of the last one restores the user's state."""
        self._n_blocks -= 1
        if self._n_blocks:
            # A block of another thread is still open.
            return
        self.waiting, kept, self._kept = None, self._kept, None
        if kept is not None:
            np.random.set_state(kept)


class Seeds:
    """Seeds of NumPy's global generator that cannot wait: before NumPy 1.25."""

    def __setattr__(self, name: str, words: Sequence[int]) -> None:
        np.random.seed(words)


def _installed() -> MT19937 | None:
    """Installs and returns our global generator; ``None`` if the user has another."""
    if not hasattr(np.random, "get_bit_generator"):
        return None
    there = np.random.get_bit_generator()
    if isinstance(there, MT19937):
        return there
    if there is not _FIRST or type(there) is not np.random.MT19937:
        return None
    state, ours = np.random.get_state(legacy=False), MT19937(0)
    if there.seed_seq is None:
        # The new generator must also appear as seeded by the user.
        ours._legacy_seeding(0)
    np.random.set_bit_generator(ours)
    np.random.set_state(state)
    return ours


@contextmanager
def waiting_seeds() -> Iterator[MT19937 | Seeds]:
    """Makes seeds wait within, and restores the global generator at the end.

    Yields:
        An object with an attribute ``waiting``, to be set to the words of a seed, each
        of 32 bits. The next draw uses the seed that was set last.

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
