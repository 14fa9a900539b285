"""Random numbers that depend on the layer and the microbatch, not on the cut.

Dropout and other random layers draw from the one global generator of NumPy or CuPy, so
what a layer gets depends on everything that drew before it: on the cut, the schedule
and whether a forward is run again. In here each layer of a `Divisible`
draws from a stream of its own::

    stream of a layer = f(seed, step, microbatch, train, position of the layer)

or, in the call that sizes the layer and draws its weights, that of the first microbatch
of all, whichever it is called with first. The user's own stream goes on afterwards as
if nobody else had drawn from it.
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
        seed: Chosen by the user; at least 0.
        step: How many minibatches came before.
        microbatch: Its position in the minibatch.
        train: Whether it is a training step.
    """

    seed: int
    step: int
    microbatch: int = 0
    train: bool = True


class _Active(threading.local):
    key: RandomKey | None = None
    # The positions of layers that are not sized yet.
    unsized: Collection[int] = ()
    # The layer whose stream it is.
    position: int | None = None
    # Where seeds of NumPy's generator wait, while it is to be given back.
    seeds: Any = None
    # On a GPU, CuPy's module of generators.
    gpu_random: Any = None


_active = _Active()


@contextmanager
def keyed_random_state(
    key: RandomKey, device: Any = None, unsized: Collection[int] = ()
) -> Iterator[None]:
    """Lets every layer draw the random numbers of its position.

    A pipeline does this for each microbatch. A serial script that does it as well gets
    the same dropout masks. Afterwards the global generators are as they were.

    Functions that leave random numbers to cuDNN (``F.dropout`` with
    ``chainer.config.use_cudnn = 'always'``, and dropout inside ``NStepLSTM`` and the
    like on a GPU) draw from cuDNN's own stream and are not reached.

    Args:
        key (RandomKey): What the numbers depend on.
        device (chainer.backend.Device or None): Where the layers are, if on a GPU.
        unsized: The positions of layers that draw their weights in this call. They
            draw by the key of the first microbatch of training, so that weights depend
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
    """Gives the global generators back as they were; within itself it does nothing.

    A pipeline does it once for all layers of a minibatch.

    Args:
        device (chainer.backend.Device or None): Where the layers are. On a GPU, CuPy's
            generator is exchanged for one that is cheap to seed.
    """
    if _active.seeds is not None:
        yield
        return
    with waiting_seeds() as seeds:
        _active.seeds = seeds
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
    # CuPy's usual generator prepares thousands of streams whenever it is seeded, a
    # Philox counter nothing.
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
    """Lets what is drawn depend on a key and a name; the global generators stay.

    Args:
        key (RandomKey): What the numbers depend on.
        name (str): What else, such as the path of a parameter.
        device (chainer.backend.Device or None): Where is drawn, if on a GPU.

    Example:
        >>> draws = []
        >>> for name in ("/0/W", "/0/W", "/1/W"):
        ...     with named_stream(RandomKey(seed=3, step=0), name):
        ...         draws.append(np.random.rand())
        >>> draws[0] == draws[1], draws[0] == draws[2]
        (True, False)
    """
    with restored_random_state(device):
        # Another number of words than for a layer.
        _seed([*_words(key), 0, zlib.crc32(name.encode())])
        yield


class LayerStreams:
    """The context of one pass through the layers, in which each has its own stream.

    It takes the active key; without one it does nothing. A
    :class:`~divisible.Divisible` inside a layer draws from the stream of that layer:
    its own positions would give two such layers the same numbers.
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


def drawing_layer() -> int | None:
    """Returns the position of the layer that draws from its stream, if one did.

    Not that of a layer in a model within it; after the last layer, the position behind.
    """
    return _active.position


@functools.lru_cache(maxsize=4)
def _words(key: RandomKey) -> list[int]:
    """Splits the key into numbers of 32 bits, as many for every key."""
    words = []
    for number in key:
        words += [number & 0xFFFFFFFF, int(number) >> 32 & 0xFFFFFFFF]
    return words


def _seed(words: list[int]) -> None:
    _active.seeds.waiting = words
    if _active.gpu_random is not None:
        # CuPy converts to uint64, which NumPy 2 thinks is not safe from Python's int.
        seed = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
        _active.gpu_random.seed(seed)
