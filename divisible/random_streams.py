"""Random numbers that depend on the layer and the microbatch, not on the cut.

Dropout and other random layers draw from the global generator of NumPy or CuPy. So the
numbers of a layer depend on all draws before: on the cut, the schedule, and whether a
forward is run again. In this module each layer of a `Divisible` draws from a stream of
its own::

    stream of a layer = f(seed, step, microbatch, train, position of the layer)

Some layers get their sizes, and draw their weights, in their first call. In that call
they use the stream of the very first microbatch, whichever microbatch it is. The user's
own stream then continues as if no layer had drawn from it.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.backends import cuda

from divisible.late_seeds import waiting_seeds


class RandomKey(NamedTuple):
    """The key of a forward's random numbers, besides the layer.

    Attributes:
        seed: Seed that the user chose; at least 0.
        step: Number of minibatches before this one.
        microbatch: Position of the microbatch in the minibatch.
        train: Whether this is a step of training.
    """

    seed: int
    step: int
    microbatch: int = 0
    train: bool = True


class _Active(threading.local):
    key: RandomKey | None = None
    # The positions of layers that have no sizes yet.
    unsized: Collection[int] = ()
    # The position of the layer whose stream is in use.
    position: int | None = None
    # The words that seeded the stream in use.
    words: list[int] | None = None
    # Whether a generator of another library has drawn from it.
    is_drawn_elsewhere = False
    # Holds the waiting seed of NumPy's generator, within `restored_random_state`.
    seeds: Any = None
    # CuPy's module of generators, on a GPU.
    gpu_random: Any = None


_active = _Active()


@contextmanager
def keyed_random_state(
    key: RandomKey, device: Any = None, unsized: Collection[int] = ()
) -> Iterator[None]:
    """Gives every layer the random numbers of its position.

    A pipeline does this for each microbatch. A serial script that does the same gets
    the same dropout masks. At the end the global generators are restored.

    Functions that leave random numbers to cuDNN draw from cuDNN's own stream, which
    this cannot set. These are ``F.dropout`` with
    ``chainer.config.use_cudnn = 'always'``, and dropout inside ``NStepLSTM`` and
    similar links on a GPU.

    Args:
        key (RandomKey): The key of the numbers.
        device (chainer.backend.Device or None): The layers' device, if it is a GPU.
        unsized: The positions of layers that draw their weights in this call. They
            use the key of the first microbatch of training, so that weights depend
            on the seed and the position only.

    Raises:
        ValueError: If a number of the key is negative.

    Example:
        >>> import chainer.functions as F
        >>> import numpy as np
        >>> from divisible import Divisible
        >>> model, x = Divisible(F.dropout), np.ones((2, 8), np.float32)
        >>> masks = []
        >>> for step in (0, 0, 1):
        ...     with keyed_random_state(RandomKey(seed=3, step=step)):
        ...         masks.append(model(x).array)
        >>> bool((masks[0] == masks[1]).all()), bool((masks[0] == masks[2]).all())
        (True, False)
    """
    if min(key) < 0:
        raise ValueError(f"the numbers of a random key must not be negative: {key}")
    outer = _active.key, _active.unsized
    _active.key, _active.unsized = key, unsized
    try:
        if _active.seeds is not None:
            yield
        else:
            with restored_random_state(device):
                yield
    finally:
        _active.key, _active.unsized = outer


@contextmanager
def restored_random_state(device: Any = None) -> Iterator[None]:
    """Restores the global generators at the end; nested calls do nothing.

    A pipeline does this once for all layers of a minibatch.

    Args:
        device (chainer.backend.Device or None): The layers' device. On a GPU, CuPy's
            generator is replaced by one that is cheap to seed.
    """
    if _active.seeds is not None:
        yield
        return
    with waiting_seeds() as seeds:
        _active.seeds, _active.words = seeds, None
        try:
            if isinstance(device, cuda.GpuDevice):
                with chainer.using_device(device), _philox():
                    yield
            else:
                yield
        finally:
            _active.seeds = None


@contextmanager
def _philox() -> Iterator[None]:
    # Seeding CuPy's usual generator prepares thousands of streams. Seeding a Philox
    # counter costs nothing.
    random = _active.gpu_random = cuda.cupy.random
    own = random.get_random_state()
    method = cuda.cupy.cuda.curand.CURAND_RNG_PSEUDO_PHILOX4_32_10
    random.set_random_state(random.RandomState(np.uint64(0), method=method))
    try:
        yield
    finally:
        random.set_random_state(own)
        _active.gpu_random = None


@contextmanager
def named_stream(key: RandomKey, name: str, device: Any = None) -> Iterator[None]:
    """Makes draws within depend on a key and a name; restores the global generators.

    Args:
        key (RandomKey): The key of the numbers.
        name (str): Another part of the key, such as the path of a parameter.
        device (chainer.backend.Device or None): The device of the draws, if on a GPU.

    Example:
        >>> draws = []
        >>> for name in ("/0/W", "/0/W", "/1/W"):
        ...     with named_stream(RandomKey(seed=3, step=0), name):
        ...         draws.append(np.random.rand())
        >>> draws[0] == draws[1], draws[0] == draws[2]
        (True, False)
    """
    with restored_random_state(device):
        # The number of words differs from that for a layer.
        _seed([*_words(key), 0, zlib.crc32(name.encode())])
        yield


class LayerStreams:
    """The context of one pass through the layers, in which each has its own stream.

    Streams use the active key; without a key nothing happens. A
    :class:`~divisible.Divisible` inside a layer draws from the stream of that layer.
    Its own positions would give two such layers the same numbers.
    """

    def __enter__(self) -> LayerStreams:
        self._key, _active.key = _active.key, None
        self._unsized = _active.unsized
        return self

    def __exit__(self, *error: Any) -> None:
        _active.key = self._key

    def enter(self, position: int) -> None:
        """Begins the stream of the layer at a position."""
        key = self._key
        if key is None:
            return
        _active.position = position
        if position in self._unsized:
            key = RandomKey(key.seed, step=0)
        _seed([*_words(key), position])


def begin_stream(key: RandomKey, position: int) -> None:
    """Begins the stream of a layer with another key, within its pass.

    Args:
        key (RandomKey): The key, such as that of another microbatch.
        position (int): Position of the layer in the undivided model.
    """
    if _active.seeds is not None:
        _seed([*_words(key), position])


def stream_words() -> list[int] | None:
    """Returns the words that seed the stream in use, for generators of other libraries.

    Each beginning of a stream has a list of its own.

    Returns:
        Words of 32 bits; ``None`` outside of :func:`keyed_random_state`, and before its
        first layer.

    Example:
        >>> stream_words() is None
        True
    """
    return None if _active.seeds is None else _active.words


def note_draw() -> None:
    """Records that a generator of another library has drawn from the stream in use."""
    _active.is_drawn_elsewhere = True


def has_drawn() -> bool:
    """Returns whether a layer has drawn from its stream since it began."""
    return _active.seeds is not None and (
        _active.seeds.waiting is None or _active.is_drawn_elsewhere
    )


def drawing_layer() -> int | None:
    """Returns the position of the layer that draws from its stream, if one did.

    The positions in a model within a layer do not count. After the last layer, the
    result is the position behind it.
    """
    return _active.position


@functools.lru_cache(maxsize=4)
def _words(key: RandomKey) -> list[int]:
    """Splits the key into integers of 32 bits, as many for every key."""
    words = []
    for number in key:
        words += [number & 0xFFFFFFFF, int(number) >> 32 & 0xFFFFFFFF]
    return words


def _seed(words: list[int]) -> None:
    _active.seeds.waiting = _active.words = words
    _active.is_drawn_elsewhere = False
    if _active.gpu_random is not None:
        # CuPy converts to uint64, which NumPy 2 refuses for Python's integers.
        seed = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
        _active.gpu_random.seed(seed)
