"""Random draws that depend on a key only, and not on earlier draws."""

from __future__ import annotations

import functools
import hashlib
import inspect
import random
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from chainer.backends import cuda

# How many levels of attributes and elements are searched for generators.
_DEPTH = 4


@contextmanager
def keyed_random(key: str, *users: Any) -> Iterator[None]:
    """Makes random draws within depend on ``key`` only.

    The global generators of Python, NumPy and CuPy are seeded by the key, and get back
    their former state at the end. So do generators that one of ``users`` carries, such
    as the ``rng`` of Chainer's initializers. Their draws depend on the key and on the
    state in which they were passed.

    Args:
        key (str): Any text.
        users: Callables that draw within: initializers, functions. Their attributes,
            default and partial arguments, closures and global names are searched for
            generators.

    Example:
        >>> with keyed_random('0/W'):
        ...     first = np.random.rand()
        >>> with keyed_random('0/W'):
        ...     first == np.random.rand()
        True
    """
    with ExitStack() as restored:
        state = random.getstate()
        restored.callback(random.setstate, state)
        random.seed(key)
        restored.callback(np.random.set_state, np.random.get_state())
        np.random.seed(_words(key))
        # CuPy may be installed where there is no GPU.
        if cuda.available and cuda.cupy.is_available():
            _replace_cupys(_words(key), restored)
        for number, found in enumerate(_generators(users)):
            _rekey(found, f"{key}:{number}", restored)
        yield


def _words(key: str) -> np.ndarray:
    """Returns 8 words of 32 bits for a key, which seed a generator."""
    digest = hashlib.sha256(key.encode()).digest()
    return np.frombuffer(digest, dtype="<u4").astype(np.uint32)


def _replace_cupys(words: np.ndarray, restored: ExitStack) -> None:
    own = cuda.cupy.random
    restored.callback(own.set_random_state, own.get_random_state())
    # Seeding a Philox counter costs nothing. CuPy's usual generator prepares streams.
    method = cuda.cupy.cuda.curand.CURAND_RNG_PSEUDO_PHILOX4_32_10
    own.set_random_state(own.RandomState(np.uint64(words[0]), method=method))


def _rekey(generator: Any, key: str, restored: ExitStack) -> None:
    if isinstance(generator, random.Random):
        state = generator.getstate()
        restored.callback(generator.setstate, state)
        generator.seed(f"{key}:{state}")
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state()
        restored.callback(generator.set_state, state)
        digest = hashlib.sha256(state[1].tobytes()).hexdigest()
        generator.seed(_words(f"{key}:{digest}:{state[2:]}"))
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        state = bits.state
        restored.callback(setattr, bits, "state", state)
        text = "".join(
            value.tobytes().hex() if isinstance(value, np.ndarray) else str(value)
            for value in _leaves(state)
        )
        words = _words(f"{key}:{text}")
        bits.state = type(bits)(np.random.SeedSequence(words.tolist())).state
    else:
        # CuPy's generators do not show their state, so it cannot be restored.
        generator.seed(np.uint64(_words(key)[0]))


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        for value in state.values():
            yield from _leaves(value)
    else:
        yield state


def _generators(users: tuple) -> list[Any]:
    """Returns the random generators that callables carry, each once."""
    kinds: tuple = (random.Random, np.random.RandomState, np.random.Generator)
    if cuda.available:
        kinds += (cuda.cupy.random.RandomState,)
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def search(value: Any, depth: int) -> None:
        if id(value) in seen or depth > _DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, kinds):
            found[id(value)] = value
        elif not isinstance(value, (type, types.ModuleType)):
            for part in _parts(value):
                search(part, depth + 1)

    for user in users:
        search(user, 0)
    return list(found.values())


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)) and len(value) <= 16:
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, tuple(value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            # A cell is empty until its variable is assigned.
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        for name in value.__code__.co_names:
            yield value.__globals__.get(name)
    elif callable(value):
        yield from getattr(value, "__dict__", {}).values()
        # ``deferred_init`` replaces the calls of initializers by functions that wrap
        # them.
        yield inspect.unwrap(inspect.getattr_static(type(value), "__call__"))
