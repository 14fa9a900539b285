"""Arrays that record how they will be made, and take no memory until then."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from divisible.deferred.recipe import Recipe, Step, View, Write, unreadable, whole


class DeferredArray(np.ndarray):
    """An array that is not made yet.

    A deferred array has the shape and the dtype of the array to come, so that code
    which reads these (``Link.count_params``, ``print``, optimizers) needs no change.
    All its elements are one NaN in memory, read-only: it takes a few hundred bytes,
    whatever the shape. Writes to it, or to a part of it, are recorded, and run when the
    array is made. Its values cannot be read.

    ::

        W = DeferredArray((512, 512), np.float32, seed=0)
        W.write(HeNormal())            step 0: the whole
        W[:256].write(Orthogonal())    step 1: a part
        W *= 2                         step 2: the whole
        W.recipe.make()                an ordinary array, after these three

    Args:
        shape (int or tuple of int): Shape of the array.
        dtype: Dtype of the array.
        seed (int): Seed of its random draws.
    """

    #: Functions that check the values of a model read this attribute.
    is_deferred = True

    _recipe: Recipe | None
    _view: View
    # The operations that took this part from the whole, to recognize the same part.
    _path: tuple

    def __new__(cls, shape: Any, dtype: Any, seed: int) -> DeferredArray:
        """Makes an array of one element, repeated."""
        dtype = np.dtype(dtype)
        shape = (shape,) if np.ndim(shape) == 0 else tuple(shape)
        shape = tuple(int(n) for n in shape)
        one = np.full(1, np.nan if dtype.kind in "fc" else 0, dtype)
        self = super().__new__(cls, shape, dtype, one, strides=(0,) * len(shape))
        self.flags.writeable = False
        self._recipe = Recipe(shape, dtype, seed, [])
        return self

    def __array_finalize__(self, source: Any) -> None:
        # This is called for arrays that NumPy makes in other ways than in this class.
        self._recipe = None
        self._view = whole
        self._path = ()

    @property
    def recipe(self) -> Recipe:
        """The recipe of the whole array, also for a part of it."""
        if self._recipe is None:
            raise unreadable("this part of it")
        return self._recipe

    def make(self) -> np.ndarray:
        """Makes the array, and returns it, or the part that this object stands for."""
        return self._view(self.recipe.make())

    def write(self, write: Write, *sources: DeferredArray) -> None:
        """Records a write to this array.

        Args:
            write: Function that writes. It is called with the ordinary array, or the
                part of it, when the array is made.
            sources: Deferred arrays that ``write`` reads.
        """
        recipe = self.recipe
        read = tuple(source.recipe for source in sources)
        recipe.steps.append(Step(write, self._view, recipe.dtype, read))

    def _part(self, take: View, *how: Any) -> DeferredArray:
        part = take(self.view(np.ndarray)).view(DeferredArray)
        outer = self._view
        part._recipe = self.recipe
        part._view = lambda array: take(outer(array))
        part._path = (*self._path, how)
        return part

    def __getitem__(self, index: Any) -> DeferredArray:
        indices = index if isinstance(index, tuple) else (index,)
        if not all(_is_basic(i) for i in indices):
            raise unreadable(f"the elements [{index}]")
        is_element = not isinstance(self.view(np.ndarray)[index], np.ndarray)
        # An element is a part of no dimensions.
        place = (*indices, ...) if is_element else index
        return self._part(lambda array: array[place], "item", index)

    def reshape(self, *shape: Any, **kwargs: Any) -> DeferredArray:
        """Returns a reshaped part; see ``numpy.ndarray.reshape``."""
        take = functools.partial(np.ndarray.reshape, **kwargs)
        return self._part(lambda array: take(array, *shape), "reshape", shape, kwargs)

    def transpose(self, *axes: Any) -> DeferredArray:
        """Returns a transposed part; see ``numpy.ndarray.transpose``."""
        return self._part(lambda array: array.transpose(*axes), "transpose", axes)

    @property
    def T(self) -> DeferredArray:
        """The transposed array."""
        return self.transpose()

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, DeferredArray):
            if value.recipe is self.recipe and value._path == (
                *self._path,
                ("item", index),
            ):
                return  # The end of array[index] *= 2: the part is written already.
            # The copy ignores later writes to ``value``.
            source = value.copy()
            self.write(
                lambda array: _put(array, index, source.recipe.compute()), source
            )
        else:
            value = np.array(value)
            # A value that does not fit raises its error here, not when it is written.
            part = self.view(np.ndarray)[index]
            np.broadcast_to(value, np.shape(part))
            self.write(lambda array: _put(array, index, value))

    def fill(self, value: Any) -> None:
        """Fills the array with a scalar."""
        self[...] = value

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> DeferredArray:
        # Only operations in place are possible, such as array *= 2.
        out = kwargs.pop("out", ())
        others = [x for x in inputs if x is not self]
        if method != "__call__" or kwargs or len(out) != 1 or out[0] is not self:
            raise unreadable(f"numpy.{ufunc.__name__}")
        if any(isinstance(x, DeferredArray) for x in others):
            raise unreadable(f"numpy.{ufunc.__name__} with another such array")
        values = [None if x is self else np.array(x) for x in inputs]
        self.write(
            lambda array: ufunc(
                *[array if value is None else value for value in values], out=array
            )
        )
        return self

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, kwargs: dict
    ) -> Any:
        if function in (np.shape, np.ndim, np.size):
            return function(self.view(np.ndarray), *args[1:], **kwargs)
        if function is np.array2string:
            return repr(args[0])
        if function in _LIKE and args[:1] and isinstance(args[0], DeferredArray):
            return _like(function, *args, **kwargs)
        if function is np.linalg.svd:
            return _svd(*args, **kwargs)
        if function is np.copyto and len(args) == 2 and not kwargs and args[0] is self:
            self[...] = args[1]
            return None
        raise unreadable(f"numpy.{function.__name__}")

    def copy(self, order: str = "C") -> DeferredArray:
        """Returns a copy with the same recipe, and so with equal values."""
        recipe = self.recipe
        copied = DeferredArray(self.shape, self.dtype, recipe.seed)
        same = recipe.copied(self.dtype)
        if self._view is whole:
            copied._recipe = same
        else:
            source = DeferredArray(same.shape, self.dtype, recipe.seed)
            source._recipe = same
            part = self._view
            copied.write(lambda array: _put(array, ..., part(same.compute())), source)
        return copied

    __copy__ = copy

    def __deepcopy__(self, memo: dict) -> DeferredArray:
        return memo.setdefault(id(self), self.copy())

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise unreadable("pickle")

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> DeferredArray:
        """Returns an array that will be made in the same way, and then converted.

        Args:
            dtype: A floating-point dtype, or the dtype of this array.
            *args: Arguments of NumPy's method.
            **kwargs: Keyword arguments of NumPy's method.

        Raises:
            NotMadeError: If this is a part of an array, or has no floating-point
                numbers.
        """
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self if kwargs.get("copy") is False else self.copy()
        if self._view is not whole or {dtype.kind, self.dtype.kind} != {"f"}:
            raise unreadable("astype")
        converted = DeferredArray(self.shape, dtype, self.recipe.seed)
        converted._recipe = self.recipe.copied(dtype)
        return converted

    def __repr__(self) -> str:
        return f"<deferred array of shape {self.shape}, {self.dtype}>"

    __str__ = __repr__

    def __iter__(self) -> Iterator[DeferredArray]:
        return (self[i] for i in range(len(self)))

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise unreadable("a method of the array")

    # NumPy calls these without __array_ufunc__ or __array_function__.
    dot = item = tolist = tobytes = flatten = ravel = take = _refuse
    __float__ = __int__ = __bool__ = _refuse


_LIKE = (np.full_like, np.zeros_like, np.ones_like, np.empty_like)


def _like(
    function: Callable,
    prototype: DeferredArray,
    *values: Any,
    dtype: Any = None,
    shape: Any = None,
    **kwargs: Any,
) -> DeferredArray:
    """Returns an array as of ``numpy.full_like`` and its kin, to be filled later."""
    array = DeferredArray(
        prototype.shape if shape is None else shape,
        dtype or prototype.dtype,
        prototype.recipe.seed,
    )
    if function is np.full_like:
        (value,) = values or (kwargs.pop("fill_value"),)
        array[...] = value
    elif function is not np.empty_like:
        array[...] = 1 if function is np.ones_like else 0
    return array


def _svd(
    matrix: DeferredArray,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
) -> Any:
    """Decomposes later, as :class:`~chainer.link_hooks.SpectralNormalization` needs it.

    Args and returned values are those of ``numpy.linalg.svd``.
    """
    # The copy ignores later writes to the matrix.
    source = matrix.copy()
    *others, n_rows, n_columns = matrix.shape
    n = min(n_rows, n_columns)
    shapes = [(n_rows, n_rows), (n,), (n_columns, n_columns)]
    if not full_matrices:
        shapes[::2] = [(n_rows, n), (n, n_columns)]

    def part(number: int, *shape: int) -> DeferredArray:
        array = DeferredArray((*others, *shape), matrix.dtype, matrix.recipe.seed)

        def write(out: np.ndarray) -> None:
            values = source.recipe.compute()
            parts = np.linalg.svd(values, full_matrices, True, hermitian)
            _put(out, ..., parts[number])

        array.write(write, source)
        return array

    if not compute_uv:
        return part(1, *shapes[1])
    return tuple(part(number, *shape) for number, shape in enumerate(shapes))


def _put(array: np.ndarray, index: Any, value: Any) -> None:
    array[index] = value


def _is_basic(index: Any) -> bool:
    return index is None or index is Ellipsis or isinstance(index, (int, slice))
