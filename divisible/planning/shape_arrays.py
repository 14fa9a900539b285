"""Arrays that have a shape and a dtype, and no numbers.

Code that only passes arrays on, views them or computes elementwise runs on them as on
NumPy's own, and gets arrays of the right shapes. Nothing is computed or allocated::

    x = ShapeArray((256, 5000), np.float32)     some hundred bytes
    x.reshape(16, -1, 5000)                     a view, of the same buffer
    x[:128] * 2 + 1                             another ShapeArray: (128, 5000) float32
    x.sum(axis=1), x @ x.T, np.concatenate([x, x])
    float(x[0, 0]), np.sort(x)                  NoNumbersError

All elements are one zero in memory, read-only. So a reshaped array is a view. Only an
array with channels last in memory is an exception: NumPy copies it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided


class NoNumbersError(RuntimeError):
    """A computation needs the numbers of an array that has none."""


class ShapeArray(np.ndarray):
    """An array without numbers.

    Args:
        shape (int or tuple of int): Shape of the array.
        dtype: Dtype of the array.
        channels_last (bool): Whether its channels would be last in memory.

    Example:
        >>> x = ShapeArray((256, 5000), np.float32)
        >>> y = np.tanh(x[:, :10].transpose(1, 0)) + 1
        >>> y.shape, y.dtype, x.nbytes
        ((10, 256), dtype('float32'), 5120000)
    """

    # NumPy's operators on other arrays return this class.
    __array_priority__ = 100.0
    #: Whether the channels of (N, C, ...) would be last in memory, as convolutions
    #: return them.
    channels_last = False

    def __new__(cls, shape: Any, dtype: Any, channels_last: bool = False) -> ShapeArray:
        """Makes an array of one element, repeated."""
        shape = (shape,) if np.ndim(shape) == 0 else tuple(map(int, shape))
        self = super().__new__(
            cls, shape, dtype, np.zeros(1, dtype), strides=(0,) * len(shape)
        )
        self.flags.writeable = False
        if channels_last and self.ndim > 2:
            self.channels_last = True
        return self

    @classmethod
    def of(cls, array: Any) -> ShapeArray:
        """Returns an array without its numbers; it counts as the same buffer."""
        if isinstance(array, cls):
            return array
        return _of_buffer(array, array.shape).view(cls)

    def seen_as(self, shape: tuple[int, ...]) -> ShapeArray:
        """Returns an array of any other shape that counts as the same buffer."""
        return _of_buffer(self, shape).view(ShapeArray)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **kwargs: Any
    ) -> Any:
        if method == "__call__" and ufunc is np.matmul:
            results: Any = _matmul(*inputs)
        elif method == "__call__" and ufunc.signature is None:
            shape = np.broadcast_shapes(*map(np.shape, inputs))
            order = any(_is_last(x) and x.shape == shape for x in inputs)
            results = tuple(
                ShapeArray(shape, dtype, order)
                for dtype in _dtypes(ufunc, inputs, kwargs)
            )
            results = results[0] if len(results) == 1 else results
        elif method == "reduce":
            results = _reduced(ufunc, *inputs, **kwargs)
        elif method == "accumulate":
            results = _like(inputs[0], kwargs.get("dtype"))
        else:
            raise NoNumbersError(f"numpy.{ufunc.__name__} has no rule for shapes")
        # Written to the arrays that the caller gave.
        return out[0] if len(out) == 1 and out[0] is not None else results

    def __array_function__(
        self, function: Callable, types: Any, args: tuple, kwargs: dict
    ) -> Any:
        if function in _RULES:
            return _RULES[function](*args, **kwargs)
        if function in _NATIVE:
            if function is np.broadcast_to:
                kwargs = {**kwargs, "subok": True}
            return super().__array_function__(
                function, (ShapeArray, np.ndarray), args, kwargs
            )
        raise NoNumbersError(f"numpy.{function.__name__} has no rule for shapes")

    def __getitem__(self, index: Any) -> ShapeArray:
        indexes = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, (list, np.ndarray)) for i in indexes):
            return self._gathered(index)
        # An element stays an array.
        return super().__getitem__((*indexes, ...) if ... not in indexes else indexes)

    def _gathered(self, index: Any) -> ShapeArray:
        """Returns the result of an index with arrays, whose elements count as 0."""
        indexes = index if isinstance(index, tuple) else (index,)
        if any(getattr(i, "dtype", None) == np.bool_ for i in indexes):
            raise NoNumbersError("an index of truth values needs the numbers")
        plain = tuple(
            np.zeros(i.shape, np.intp) if isinstance(i, ShapeArray) else i
            for i in indexes
        )
        # NumPy allocates what it gathers, so axes after the index are left out.
        n = sum(i is not None for i in indexes)
        n = self.ndim if any(i is ... for i in indexes) else n
        here = np.broadcast_to(np.zeros(1, bool), self.shape[:n])
        return ShapeArray(here[plain].shape + self.shape[n:], self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes nothing: there are no numbers."""

    def __iter__(self) -> Iterator[ShapeArray]:
        return (self[i] for i in range(len(self)))

    def fill(self, value: Any) -> None:
        """Writes nothing: there are no numbers."""

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> ShapeArray:
        """Returns an array of another dtype, as ``numpy.ndarray.astype`` does."""
        copies = kwargs.get("copy", True)
        return self if not copies and dtype == self.dtype else _like(self, dtype)

    def copy(self, order: str = "C") -> ShapeArray:
        """Returns an array with a buffer of its own."""
        return _like(self)

    def __deepcopy__(self, memo: dict) -> ShapeArray:
        return memo.setdefault(id(self), self.copy())

    def dot(self, other: Any, out: Any = None) -> Any:
        """Returns the product, as ``numpy.dot`` does."""
        return _dot(self, other, out)

    def argmax(self, axis: Any = None, out: Any = None, **kwargs: Any) -> ShapeArray:
        """Returns indexes without numbers."""
        return _reduced_shape(self, axis, np.intp, kwargs.get("keepdims", False))

    argmin = argmax

    def take(self, indices: Any, axis: Any = None, **kwargs: Any) -> ShapeArray:
        """Returns the elements at some indexes, as ``numpy.take`` does."""
        if axis is None:
            return ShapeArray(np.shape(indices), self.dtype)
        axis %= self.ndim
        shape = (*self.shape[:axis], *np.shape(indices), *self.shape[axis + 1 :])
        return ShapeArray(shape, self.dtype)

    def repeat(self, repeats: int, axis: Any = None) -> ShapeArray:
        """Returns each element several times, as ``numpy.repeat`` does."""
        if axis is None:
            return ShapeArray(self.size * repeats, self.dtype)
        shape = list(self.shape)
        shape[axis] *= repeats
        return ShapeArray(shape, self.dtype)

    def reshape(self, *shape: Any, **kwargs: Any) -> ShapeArray:
        """Returns a view, or a copy as NumPy does where the channels are last."""
        view = super().reshape(*shape, **kwargs)
        copies = self.channels_last and view.shape != self.shape
        if copies and self.shape[1] > 1 and math.prod(self.shape[2:]) > 1:
            return ShapeArray(view.shape, self.dtype)
        return view

    def flatten(self, order: str = "C") -> ShapeArray:
        """Returns a copy of one axis."""
        return ShapeArray(self.size, self.dtype)

    def ravel(self, order: str = "C") -> ShapeArray:
        """Returns a view of one axis."""
        return self.reshape(-1)

    def cumsum(
        self, axis: Any = None, dtype: Any = None, out: Any = None
    ) -> ShapeArray:
        """Returns an array of the same shape."""
        return _like(self if axis is not None else self.ravel(), dtype)

    cumprod = cumsum

    def __repr__(self) -> str:
        return f"<shape {self.shape}, {self.dtype}>"

    __str__ = __repr__

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NoNumbersError("the code reads the numbers of an array")

    # NumPy calls these without __array_ufunc__ or __array_function__.
    item = tolist = tobytes = sort = argsort = nonzero = round = choose = _refuse
    searchsorted = partition = argpartition = trace = compress = byteswap = _refuse
    __float__ = __int__ = __bool__ = __index__ = __complex__ = _refuse


def _of_buffer(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    plain, strides = array.view(np.ndarray), (0,) * len(shape)
    return as_strided(plain, shape, strides, writeable=False)


def _like(array: Any, dtype: Any = None, shape: Any = None, **_: Any) -> ShapeArray:
    order = shape is None and _is_last(array)
    shape = array.shape if shape is None else shape
    return ShapeArray(shape, array.dtype if dtype is None else dtype, order)


def _is_last(array: Any) -> bool:
    return getattr(array, "channels_last", False)


def _stand_in(value: Any) -> Any:
    """Returns an array of one element in place of one of any shape."""
    if isinstance(value, np.ndarray):
        return np.ones((1,) * value.ndim, value.dtype)
    return value


def _dtypes(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict) -> list[np.dtype]:
    """Returns the dtypes of the results, from a call with one element."""
    wanted = {key: kwargs[key] for key in ("dtype", "casting") if key in kwargs}
    with np.errstate(all="ignore"):
        found = ufunc(*map(_stand_in, inputs), **wanted)
    return [each.dtype for each in (found if isinstance(found, tuple) else (found,))]


def _reduced(
    ufunc: np.ufunc,
    array: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    **_: Any,
) -> ShapeArray:
    with np.errstate(all="ignore"):
        found = ufunc.reduce(np.ones(1, array.dtype), dtype=dtype).dtype
    return _reduced_shape(array, axis, found, keepdims)


def _reduced_shape(array: Any, axis: Any, dtype: Any, keepdims: bool) -> ShapeArray:
    n = array.ndim
    if axis is None:
        axes = {*range(n)}
    else:
        axes = {a % n for a in (axis if isinstance(axis, tuple) else (axis,))}
    kept = 1 if keepdims else None
    shape = [kept if i in axes else size for i, size in enumerate(array.shape)]
    return ShapeArray([size for size in shape if size is not None], dtype)


def _matmul(a: Any, b: Any) -> ShapeArray:
    dtype = np.result_type(a.dtype, b.dtype)
    left = a.shape if a.ndim > 1 else (1, *a.shape)
    right = b.shape if b.ndim > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    shape = [*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1]]
    if b.ndim == 1:
        del shape[-1]
    if a.ndim == 1:
        del shape[len(shape) - (1 if b.ndim == 1 else 2)]
    return ShapeArray(shape, dtype)


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if out is not None:
        return out
    dtype = np.result_type(a.dtype, b.dtype)
    if 0 in (a.ndim, b.ndim):
        return ShapeArray(np.broadcast_shapes(a.shape, b.shape), dtype)
    shape = [*a.shape[:-1], *b.shape[:-2], *b.shape[-1:] * (b.ndim > 1)]
    return ShapeArray(shape, dtype)


def _tensordot(a: Any, b: Any, axes: Any = 2) -> ShapeArray:
    if np.ndim(axes) == 0:
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    over_a, over_b = (
        {i % x.ndim for i in np.atleast_1d(each)} for x, each in zip((a, b), axes)
    )
    shape = [n for i, n in enumerate(a.shape) if i not in over_a]
    shape += [n for i, n in enumerate(b.shape) if i not in over_b]
    return ShapeArray(shape, np.result_type(a.dtype, b.dtype))


def _einsum(subscripts: str, *operands: Any, **_: Any) -> ShapeArray:
    """Infers the shape from a sum over arrays of nothing."""
    if "..." in subscripts or not isinstance(subscripts, str):
        raise NoNumbersError("numpy.einsum with ... has no rule for shapes")
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    sizes = {
        letter: n
        for letters, x in zip(inputs.split(","), operands)
        for letter, n in zip(letters, np.shape(x))
    }
    if not arrow:
        letters = inputs.replace(",", "")
        output = "".join(c for c in sorted(sizes) if letters.count(c) == 1)
    dtype = np.result_type(*(x.dtype for x in operands))
    return ShapeArray([sizes[letter] for letter in output], dtype)


def _concatenate(arrays: Any, axis: Any = 0, **_: Any) -> ShapeArray:
    arrays = list(arrays)
    dtype = np.result_type(*(a.dtype for a in arrays))
    if axis is None:
        return ShapeArray(sum(a.size for a in arrays), dtype)
    shape = list(arrays[0].shape)
    shape[axis] = sum(a.shape[axis] for a in arrays)
    return ShapeArray(shape, dtype, all(map(_is_last, arrays)))


def _stack(arrays: Any, axis: int = 0, **_: Any) -> ShapeArray:
    arrays = list(arrays)
    shape = list(arrays[0].shape)
    shape.insert(axis % (len(shape) + 1), len(arrays))
    return ShapeArray(shape, np.result_type(*(a.dtype for a in arrays)))


def _where(condition: Any, *values: Any) -> ShapeArray:
    if not values:
        raise NoNumbersError("numpy.where of a condition alone needs the numbers")
    shape = np.broadcast_shapes(*map(np.shape, (condition, *values)))
    return ShapeArray(shape, np.where(*map(_stand_in, (condition, *values))).dtype)


def _pad(array: Any, pad_width: Any, *_: Any, **__: Any) -> ShapeArray:
    widths = np.broadcast_to(pad_width, (array.ndim, 2)).sum(axis=1)
    return ShapeArray(np.add(array.shape, widths), array.dtype)


def _tile(array: Any, reps: Any) -> ShapeArray:
    reps = tuple(np.atleast_1d(reps))
    n = max(len(reps), array.ndim)
    here = (1,) * (n - array.ndim) + array.shape
    there = (1,) * (n - len(reps)) + reps
    return ShapeArray([a * b for a, b in zip(here, there)], array.dtype)


_RULES: dict[Callable, Callable] = {
    np.concatenate: _concatenate,
    np.copy: _like,
    np.copyto: lambda *_, **__: None,
    np.dot: _dot,
    np.einsum: _einsum,
    np.empty_like: _like,
    np.full_like: lambda array, value, *args, **kwargs: _like(array, *args, **kwargs),
    np.ones_like: _like,
    np.pad: _pad,
    np.roll: lambda array, *_, **__: _like(array),
    np.stack: _stack,
    np.tensordot: _tensordot,
    np.tile: _tile,
    np.where: _where,
    np.zeros_like: _like,
    np.ndim: lambda array: array.ndim,
    np.shape: lambda array: array.shape,
    np.size: lambda array, axis=None: (
        math.prod(array.shape) if axis is None else array.shape[axis]
    ),
}
# NumPy's own code of these takes views, or calls ufuncs and methods.
_NATIVE = frozenset(
    [
        *(np.all, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_split),
        *(np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to, np.clip),
        *(np.cumprod, np.cumsum),
        *(np.diagonal, np.dsplit, np.expand_dims, np.flip, np.hsplit, np.max, np.mean),
        *(np.min, np.moveaxis, np.prod, np.ravel, np.repeat, np.reshape, np.rollaxis),
        *(np.rot90, np.split, np.squeeze, np.std, np.sum, np.swapaxes, np.take),
        *(np.transpose, np.var, np.vsplit),
    ]
)
