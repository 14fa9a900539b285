"""Models that are built without their parameters."""

from __future__ import annotations

import copy
import functools
import operator
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Callable

import chainer
import numpy as np

from divisible.deferred.array import DeferredArray
from divisible.deferred.keyed_random import keyed_random
from divisible.deferred.recipe import NotMadeError


class _Scopes(threading.local):
    """The seeds of the scopes that this thread is in, the innermost last.

    A seed of ``None`` is a pause, in which parameters are made at once.
    """

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    @property
    def seed(self) -> int | None:
        return self.seeds[-1] if self.seeds else None

    @contextmanager
    def entered(self, seed: int | None) -> Iterator[None]:
        self.seeds.append(seed)
        try:
            yield
        finally:
            self.seeds.pop()


_scopes = _Scopes()


@contextmanager
def deferred_init(seed: int = 0) -> Iterator[None]:
    """Builds models without allocating their parameters.

    In the scope, parameters and the running statistics of batch normalization are not
    made. Only their shapes, dtypes and initializers are recorded.
    :meth:`Divisible.divide` makes those of its own layers::

        rank 0   with deferred_init(0): model = VGG16()    0 bytes, on every rank
        rank 1   stage = model.divide(7, 15)               layers 7 to 14 only

    So a model may be larger than the memory of any one host. A serial script calls
    ``model.divide()``, which makes the whole model.

    Every random draw depends only on the seed, the layer's position in the undivided
    model, and the parameter's path in the layer. So the weights are bitwise the same
    for any number of ranks and any cut of the model. This holds for any initializer:
    Chainer's own, arrays, and functions that draw from the global generators of NumPy,
    CuPy or Python, or from a generator that they carry (``rng``).

    A ``Linear(None, n)``, which gets its size in the first call, has the same weights
    as a ``Linear(m, n)``. Two models with the same layers and the same seed are equal.
    Their weights differ from those of ``numpy.random.seed`` without ``deferred_init``.
    A layer's position is the one at which it is when the model is first divided or
    profiled. Change the list of layers before that, or on every rank alike.

    Some links draw numbers in their ``__init__`` that belong to no parameter. They get
    them at once, from generators that the seed has set. These numbers depend on what
    was built before, which is the same on every rank. The global generators get back
    their former state at the end of the scope.

    Until a layer is made:

    - shapes, ``count_params``, ``print``, ``copy``, ``repeat`` and writes to a
      parameter's array work, as do tied and repeated parameters;
    - ``model.to_device`` and ``load_npz(path, model)`` are postponed until the layers
      of a stage are made. Only these layers are then read from the file, which must
      still be there;
    - operations that need values, such as calling or saving the model, raise
      :class:`NotMadeError`. Some of NumPy's and CuPy's C functions cannot be stopped;
      they read NaN.

    Other arrays take their memory at once, and free it when the model is dropped. These
    are arrays given to a link, and those that are made without Chainer's parameters and
    initializers, such as ``L.DecorrelatedBatchNormalization``'s.

    Chainer cannot create a parameter of known shape without its array. So in the scope,
    and only in its thread, ``Parameter.__init__``, ``initializers.generate_array`` and
    the calls of Chainer's initializers are replaced by functions that record.
    Afterwards the original functions are back.

    Args:
        seed (int): Any number that is not negative, the same on every rank.

    Raises:
        TypeError: If the seed is not an integer.
        ValueError: If the seed is negative.

    Example:
        >>> import chainer.links as L
        >>> from divisible import Divisible
        >>> with deferred_init(seed=1):
        ...     model = Divisible(L.Linear(1000, 1000), L.Linear(1000, 10))
        >>> model.count_params()
        1011010
        >>> stage = model.divide(1, 2)
        >>> stage[0].W.array.dtype, bool(stage[0].W.array.std() > 0)
        (dtype('float32'), True)
    """
    seed = operator.index(seed)
    if seed < 0:
        raise ValueError(f"seed {seed} of deferred_init: expected 0 or more")
    with _patches, _scopes.entered(seed), keyed_random(f"{seed}:building"):
        yield


class _Patches:
    """Replaces functions of Chainer while any thread is in a scope."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_scopes = 0
        self._originals = ExitStack()
        #: Whether there ever was a scope, and so there may be deferred arrays.
        self.used = False

    def __enter__(self) -> None:
        with self._lock:
            self.used = True
            if self._n_scopes == 0:
                self._replace(chainer.Parameter, "__init__", _parameter)
                self._replace(chainer.initializers, "generate_array", _generate_array)
                for kind in _kinds(chainer.Initializer):
                    if "__call__" in vars(kind):
                        self._replace(kind, "__call__", _initializer_call)
            self._n_scopes += 1

    def __exit__(self, *exception: Any) -> None:
        with self._lock:
            self._n_scopes -= 1
            if self._n_scopes == 0:
                self._originals.close()

    def _replace(self, owner: Any, name: str, deferring: Callable) -> None:
        original = getattr(owner, name)
        self._originals.callback(setattr, owner, name, original)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if _scopes.seed is None:
                return original(*args, **kwargs)
            return deferring(original, *args, **kwargs)

        setattr(owner, name, replacement)


_patches = _Patches()


def ever_deferred() -> bool:
    """Returns whether there ever was a scope, and so may be deferred parameters."""
    return _patches.used


def at_once() -> AbstractContextManager[None]:
    """Makes parameters at once, even in a scope."""
    return _scopes.entered(None)


def _kinds(kind: type) -> set[type]:
    """Returns a class with all its subclasses."""
    return {kind}.union(*map(_kinds, kind.__subclasses__()))


def _parameter(
    original: Callable, self: chainer.Parameter, *args: Any, **kwargs: Any
) -> None:
    """Creates a parameter. If it has no shape yet, its draws get a key."""
    original(self, *args, **kwargs)
    if not self.is_initialized and not isinstance(self.initializer, KeyedInitializer):
        self.initializer = KeyedInitializer(self.initializer, _scopes.seed)


def _generate_array(
    original: Callable,
    initializer: Any,
    shape: Any,
    xp: Any,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Records the initializer instead of calling it."""
    if isinstance(initializer, KeyedInitializer):
        initializer = initializer.initializer
    if xp is not np:
        return original(initializer, shape, xp, dtype, device)
    wanted = getattr(initializer, "dtype", None)
    if dtype is None:
        dtype = wanted
    elif wanted is not None and np.dtype(dtype) != np.dtype(wanted):
        raise ValueError(f"dtype mismatch: {dtype} != {wanted}")
    array = DeferredArray(shape, chainer.get_dtype(dtype), _scopes.seed)
    array.write(_as_it_is(initializer))
    return array


def _initializer_call(
    original: Callable, self: chainer.Initializer, array: Any
) -> None:
    """Records the call of an initializer, as ``L.LSTM`` calls them on gates."""
    if isinstance(array, DeferredArray):
        array.write(_as_it_is(self))
    else:
        original(self, array)


def _as_it_is(initializer: Any) -> Any:
    """Returns an initializer that stays as it is when the given one changes."""
    if isinstance(initializer, chainer.Initializer):
        return copy.copy(initializer)
    return initializer


class KeyedInitializer:
    """Draws the values of a parameter that gets its size in its first call.

    Args:
        initializer: The initializer to call. Its attributes can be read from this one.
        seed (int): Seed of the draws, which also depend on their place.

    Attributes:
        key (str or None): Key of the draws, once the place is known.
    """

    def __init__(self, initializer: Any, seed: int) -> None:
        self.initializer = initializer
        self.seed = seed
        self.key: str | None = None
        # A parameter that is initialized once more must get other values.
        self._called = False

    def __call__(self, array: Any) -> None:
        """Fills the array on its own device."""
        if self.key is None:
            raise NotMadeError(
                "this link was created in deferred_init and is sized at its first"
                " call, but was never divided: append it to a Divisible, and call"
                " divide(), before it is used"
            )
        if self._called:
            self.initializer(array)
            return
        self._called = True
        # Values are drawn on the host, as those of all other weights.
        is_there = isinstance(array, np.ndarray)
        weights = array if is_there else np.empty(array.shape, array.dtype)
        with keyed_random(self.key, self.initializer):
            self.initializer(weights)
        if not is_there:
            chainer.backend.copyto(array, weights)

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling read these before there is an initializer.
        if name == "initializer" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.initializer, name)
