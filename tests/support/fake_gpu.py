"""A device whose arrays are not NumPy's, for exchanges where there is no GPU.

Its arrays refuse to meet NumPy's, as CuPy's do. Its loops are those of the host, and
nothing runs behind the program.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import chainer
import numpy as np

from divisible.communication.wire import WIRE, Fields

# As on a real one, int4 is coded on the host.
_WIRE_KERNELS = types.SimpleNamespace(FORMATS=tuple({*WIRE} - {"int4"}))


def _unwrapped(value: Any) -> Any:
    if isinstance(value, FakeArray):
        return value.numbers
    if isinstance(value, np.ndarray):
        raise TypeError("an array of the host meets one of a GPU")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_unwrapped, value))
    return value


def _wrapped(value: Any) -> Any:
    return FakeArray(value) if isinstance(value, (np.ndarray, np.generic)) else value


class FakeArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of the device, with what exchanges use of CuPy's."""

    # For Chainer, which lets it compute where it is.
    device = None

    def __init__(self, numbers: Any) -> None:
        self.numbers = np.asarray(numbers)

    def __getattr__(self, name: str) -> Any:
        if name not in ("shape", "dtype", "size", "ndim", "nbytes", "strides", "flags"):
            raise AttributeError(name)
        return getattr(self.numbers, name)

    @property
    def data(self) -> Any:
        """Where it lies."""
        return types.SimpleNamespace(ptr=self.numbers.ctypes.data)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("an array of a GPU is no array of the host")

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwds: Any
    ) -> Any:
        """Calls a function of NumPy's."""
        out = kwds.pop("out", None)
        if out is not None:
            kwds["out"] = _unwrapped(out)
        found = getattr(ufunc, method)(*_unwrapped(inputs), **kwds)
        return out[0] if out is not None else _wrapped(found)

    def __array_function__(self, function: Any, _: Any, args: Any, kwds: Any) -> Any:
        """Calls a function of NumPy's."""
        kwds = {name: _unwrapped(value) for name, value in kwds.items()}
        return _wrapped(function(*_unwrapped(args), **kwds))

    def __getitem__(self, place: Any) -> FakeArray:
        return FakeArray(self.numbers[place])

    def __setitem__(self, place: Any, value: Any) -> None:
        self.numbers[place] = _unwrapped(value)

    def __iter__(self) -> Iterator[FakeArray]:
        return map(FakeArray, self.numbers)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def all(self) -> FakeArray:
        """Returns one bool."""
        return FakeArray(self.numbers.all())

    def reshape(self, *shape: Any) -> FakeArray:
        """Returns a view."""
        return FakeArray(self.numbers.reshape(*shape))

    def view(self, dtype: Any) -> FakeArray:
        """Returns a view."""
        return FakeArray(self.numbers.view(dtype))

    def astype(self, dtype: Any, copy: bool = True) -> FakeArray:
        """Returns an array of another dtype."""
        return FakeArray(self.numbers.astype(dtype, copy=copy))

    def fill(self, value: float) -> None:
        """Writes a number everywhere."""
        self.numbers.fill(value)

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        """Copies it to the host."""
        if out is None:
            return self.numbers.copy()
        out[...] = self.numbers
        return out

    def set(self, array: np.ndarray) -> None:
        """Copies from the host."""
        self.numbers[...] = array


def _write(
    name: str, values: Any, share: Any, block: int, scales: Any, codes: Any
) -> FakeArray:
    fields = Fields(scales.numbers, codes.numbers)
    return FakeArray(WIRE[name].write(values.numbers, block, fields, share))


def _read(name: str, codes: Any, scales: Any, block: int, out: Any, add: bool) -> None:
    WIRE[name].read(Fields(scales.numbers, codes.numbers), block, out.numbers, add)


_WIRE_KERNELS.write, _WIRE_KERNELS.read = _write, _read


def _array(array: Any, dtype: Any, order: str) -> FakeArray:
    return FakeArray(np.array(_unwrapped(array), dtype, order=order))


#: In the place of CuPy.
XP = types.SimpleNamespace(
    empty=lambda shape, dtype: FakeArray(np.empty(shape, dtype)),
    zeros=lambda shape, dtype: FakeArray(np.zeros(shape, dtype)),
    array=_array,
    asarray=lambda array: array,
    cuda=types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(synchronize=lambda: None)
    ),
)


class FakeDevice(chainer.backend.Device):
    """The device."""

    name = "@fake:0"
    xp = XP
    supported_array_types = (FakeArray,)

    __hash__ = chainer.backend.Device.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeDevice)

    def send_array(self, array: Any) -> FakeArray:
        """Returns a copy on the device, or an array that is there."""
        return array if isinstance(array, FakeArray) else FakeArray(array.copy())


@contextmanager
def fake_gpu() -> Iterator[FakeDevice]:
    """Lets exchanges take arrays of the device, as long as the context lasts."""
    device, host = FakeDevice(), chainer.get_device("@numpy")

    def device_of(array: Any) -> Any:
        return device if isinstance(array, FakeArray) else host

    with (
        mock.patch("chainer.backends.cuda.ndarray", FakeArray),
        mock.patch("data_parallel.arrays.device_of", device_of),
        mock.patch("data_parallel.messages.page_locked", np.empty),
        mock.patch("divisible.communication.wire._kernels", lambda: _WIRE_KERNELS),
    ):
        yield device
