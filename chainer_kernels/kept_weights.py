"""Arrays that were made of weights in a scope, and whether they are still valid.

:mod:`.prepared_weights` explains when they are valid, and why reuse is safe. Nothing
here depends on Chainer.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from chainer_kernels.memory_limits import free_bytes

#: How much is kept, as a part of the memory that is free.
SHARE = 0.25
#: Copies of weights that forward and backward keep: one each.
COPIES = 2
_TOKEN = "token"


class WatchedArray:
    """The reads of the array of a parameter.

    Args:
        array: The array. It is not kept, because a layer may replace it in each
            forward.
        forget: Called when it is freed, before another array can have its ``id``.

    Attributes:
        n_applied: How often a function was applied to it.
        is_exposed: Whether other code may hold the array, and write to it.
    """

    def __init__(self, array: np.ndarray, forget: Callable[[Any], Any]) -> None:
        self._reference = weakref.ref(array, forget)
        self.n_applied = 0
        self.is_exposed = False


class Weights:
    """A parameter's array in a scope, and the arrays that were made of it.

    Args:
        array: The array.
        watched: Its reads.
        scope: The scope in which it was read.
        free: Called when it is freed, before another array can have its ``id``.
    """

    def __init__(
        self,
        array: np.ndarray,
        watched: WatchedArray,
        scope: Scope,
        free: Callable[[Any], Any],
    ) -> None:
        self._array = weakref.ref(array, free)
        self._watched, self._scope = watched, scope
        self._n_used = 0
        self._sum: int | None = None
        self._made: dict[Hashable, Any] = {}
        self._n_bytes = 0

    @property
    def n_uses(self) -> float:
        """How often the array is used in its scope, if that is known."""
        return self._scope.n_uses

    def count_application(self) -> None:
        """Counts a function that is applied to the array, by its own backward."""
        self._watched.n_applied += 1

    def use(self) -> None:
        """Counts one use, before it; forgets what was made of other values."""
        watched = self._watched
        self._n_used += 1
        if watched.n_applied > self._n_used or self._scope.are_inputs_seen():
            # A function or a hook that was given the array may keep it, and write to
            # it at any later time.
            watched.is_exposed = True
        if watched.is_exposed or watched.n_applied != self._n_used:
            self._n_used = watched.n_applied
            if self._sum is not None and self._sum != _checksum(self._array()):
                self.forget()

    def kept(self, key: Hashable, n_bytes: int, make: Callable[[], Any]) -> Any:
        """Returns what is made of the array, now or before.

        Args:
            key: Identifies what ``make`` returns among all that is made of the array.
            n_bytes: How much memory it takes.
            make: Makes it.

        Returns:
            What ``make`` returns; ``None`` if there is no room to keep it.
        """
        made = self._made.get(key)
        if made is None and self._scope.has_room(n_bytes):
            if self._sum is None:
                self._sum = _checksum(self._array())
            made = self._made[key] = make()
            self._n_bytes += n_bytes
            self._scope.n_bytes += n_bytes
        return made

    def forget(self) -> None:
        """Forgets what was made."""
        self._made.clear()
        self._sum = None
        self._scope.n_bytes -= self._n_bytes
        self._n_bytes = 0


class Scope:
    """The arrays that a thread keeps until its outermost scope ends.

    Args:
        arrays: Parameters' arrays that were read in the scope, by ``id``.
        are_inputs_seen: Returns whether other code sees the inputs of functions.
        n_uses: How often each array is used, if that is known.

    Attributes:
        n_bytes: How many bytes are kept now.
    """

    def __init__(
        self,
        arrays: Mapping[int, WatchedArray],
        are_inputs_seen: Callable[[], Any],
        n_uses: float = math.inf,
    ) -> None:
        self._arrays, self.n_uses = arrays, n_uses
        self.are_inputs_seen = are_inputs_seen
        self._most: int | None = None
        self._weights: dict[int, Weights] = {}
        self.n_bytes = 0

    def has_room(self, n_bytes: int) -> bool:
        """Returns whether ``n_bytes`` more may be kept."""
        if self._most is None:
            # Many scopes keep nothing.
            self._most = _lately.most()
        return self.n_bytes + n_bytes <= self._most

    def end(self) -> None:
        """Drops what is kept, at once: what refers to each other would stay a while."""
        self._weights.clear()

    def find(self, array: np.ndarray) -> Weights | None:
        """Returns the weights that an array is, if a parameter has it."""
        key = id(array)
        weights = self._weights.get(key)
        if weights is None:
            watched = self._arrays.get(key)
            if watched is None or not array.flags.c_contiguous:
                return None
            free = functools.partial(self._free, key)
            weights = self._weights[key] = Weights(array, watched, self, free)
        return weights

    def _free(self, key: int, reference: Any) -> None:
        """Drops what was made of an array that is freed."""
        weights = self._weights.pop(key, None)
        if weights is not None:
            weights.forget()


class _Here(threading.local):
    """The scope of this thread."""

    scope: Scope | None = None


here = _Here()


def of(array: np.ndarray) -> Weights | None:
    """Returns the weights that an array is in this thread's scope, about to be used.

    ``None`` where there is no scope, and where the array is no parameter's own.
    """
    scope = here.scope
    weights = None if scope is None else scope.find(array)
    if weights is not None:
        weights.use()
    return weights


def count_application(array: np.ndarray) -> None:
    """Counts a function that is applied to weights, where Chainer does not see it.

    The backward of a function that computes with its weights calls this for each use.
    Otherwise a use looks like one of an array that was changed.
    """
    weights = None if here.scope is None else here.scope.find(array)
    if weights is not None:
        weights.count_application()


def kept(
    array: np.ndarray, key: Hashable, n_bytes: int, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """Returns what is made of weights, now or before.

    Args:
        array: The weights, about to be used.
        key: Identifies what ``make`` returns among all that is made of the array.
        n_bytes: How much memory it takes.
        make: Makes it.
    """
    weights = of(array)
    found = None if weights is None else weights.kept(key, n_bytes, make)
    return make() if found is None else found


def kept_of_all(
    arrays: Sequence[np.ndarray],
    key: Hashable,
    n_bytes: int,
    make: Callable[[], np.ndarray],
) -> np.ndarray:
    """Returns what is made of several weights together, now or before.

    Args:
        arrays: The weights, about to be used.
        key: Identifies what ``make`` returns among all that is made of the first array.
        n_bytes: How much memory it takes.
        make: Makes it.
    """
    every = [of(array) for array in arrays]
    if None in every:
        return make()
    first = every[0]
    # An array whose values have changed has another token.
    tokens = [weights.kept(_TOKEN, 0, object) for weights in every]
    made = first.kept(key, n_bytes, lambda: (tokens, make()))
    if made is not None and made[0] != tokens:
        first.forget()
        tokens[0] = first.kept(_TOKEN, 0, object)
        made = first.kept(key, n_bytes, lambda: (tokens, make()))
    return make() if made is None else made[1]


def n_bytes() -> int:
    """Returns how many bytes are kept now, in this thread."""
    return 0 if here.scope is None else here.scope.n_bytes


def most_bytes(n_weights: int | None = None) -> int:
    """Returns how many bytes a scope that begins now keeps at most.

    Args:
        n_weights: Bytes of all weights that are used in it, if they are known.
    """
    most = int(SHARE * free_bytes())
    return most if n_weights is None else min(most, COPIES * n_weights)


class _Lately:
    """The bound of scopes that begin within a short time.

    To find it takes as long as the products of a small model.
    """

    #: Seconds for which it holds.
    SECONDS = 1.0

    def __init__(self) -> None:
        self._found: tuple[float, int] = (-math.inf, 0)

    def most(self) -> int:
        """Returns :func:`most_bytes`, as of a short time ago."""
        (when, most), now = self._found, time.monotonic()
        if now - when > self.SECONDS:
            most = most_bytes()
            self._found = now, most
        return most


_lately = _Lately()


def _checksum(array: np.ndarray) -> int:
    # xxHash is as fast as memory is read.
    return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8))
