"""Reads of parameters' arrays, noticed: who might have written to one, and when.

NumPy tells nobody of a write. Whoever writes to the array of a parameter in place needs
a reference to it first, and has one of these:

::

    layer.W.array *= 0.9          reads Parameter.array while we watch   -> noticed
    function of W, not ours       is applied to W, which reads it too    -> counted
    buffer, view, self.w          had a reference before we watched      -> counted

From :func:`begin` to :func:`end` every read of the array of a
:class:`chainer.Parameter` passes here. Reads by Chainer's links, which do not write,
are let pass. Those on behalf of functions are counted, and whoever computes with the
array counts as well: the numbers are equal if nobody else was given it. An array that
anybody else has read, or has a reference to, is *exposed*: it may change at any time.
So is an array that another thread has read. Optimizers that keep arrays, and write to
them only between minibatches, tell so by :func:`let_hold`.

``VariableNode.data`` and private attributes, such as ``Parameter._data``, are not
watched.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import Any

import chainer
import numpy as np
from chainer import function_node

from chainer_kernels.kept_weights import WatchedArray

#: Elements of weights below which nothing is gained by keeping what is made of them.
SMALLEST = 1 << 12
#: Modules whose functions read arrays of parameters and never write to them.
_READERS = (
    "chainer.functions.rnn.",
    "chainer.links.connection.",
    "chainer_kernels.functions.recurrent",
    "chainer_kernels.functions.weight_gradients",
    "chainer_kernels.fusion.",
    "data_parallel.averaging",
    "divisible.backward.",
    "model_compression.block_links",
    "pipeline.stages.leaving_arrays",
)
#: Arrays that :func:`let_hold` has let somebody keep, by ``id``.
_held: dict[int, weakref.ref] = {}


class Watch:
    """Parameters' arrays that this thread read while a block was watched.

    Attributes:
        arrays: The arrays and their counts, by ``id``.
    """

    #: References to an array that only its parameter has, where :meth:`see` counts.
    usual: int | None = None

    def __init__(self) -> None:
        self.arrays: dict[int, WatchedArray] = {}

    def see(self, parameter: chainer.Parameter, array: np.ndarray) -> None:
        """Counts one read; the caller of the caller has asked for the array."""
        key = id(array)
        watched = self.arrays.get(key)
        if watched is None:
            found = sys.getrefcount(array)
            # Its node has it too, once a function has retained it.
            if parameter.node.data is array:
                found -= 1
            if Watch.usual is None:
                Watch.usual = found
            forget = functools.partial(self._forget, key)
            watched = self.arrays[key] = WatchedArray(array, forget)
            if key in _held:
                found -= 1
            elif array.base is not None:
                watched.is_exposed = True
            watched.is_exposed |= found > Watch.usual
        frame = _asking(sys._getframe(2))
        if frame.f_code in _applying():
            watched.n_applied += 1
        elif not frame.f_globals.get("__name__", "").startswith(_READERS):
            watched.is_exposed = True

    def _forget(self, key: int, reference: Any) -> None:
        self.arrays.pop(key, None)

    def see_elsewhere(self, array: np.ndarray) -> None:
        """Records a read by another thread."""
        watched = self.arrays.get(id(array))
        if watched is not None:
            watched.is_exposed = True


class _Here(threading.local):
    """The watch of this thread."""

    watch: Watch | None = None


_here = _Here()
_lock = threading.Lock()
#: The watches of all threads.
_watches: tuple[Watch, ...] = ()
_raw_array = chainer.Variable.raw_array.fget


def are_weights(shape: tuple[int, ...]) -> bool:
    """Returns whether arrays of a shape are weights, large enough to be kept."""
    return len(shape) > 1 and math.prod(shape) >= SMALLEST


def let_hold(array: np.ndarray) -> None:
    """Records that an object keeps an array, or the memory that it is a view of.

    Args:
        array: Array of a parameter. The object has one reference to it, and writes to
            it only where nobody watches, which is between minibatches.
    """
    key = id(array)
    _held[key] = weakref.ref(array, lambda _: _held.pop(key))


def begin() -> Watch:
    """Begins to watch reads of parameters in this thread, which nobody does yet.

    Where nobody watches, :class:`chainer.Parameter` is as Chainer made it.

    Example:
        >>> W = chainer.Parameter(np.zeros((128, 128), 'f'))
        >>> watch = begin()
        >>> W.array[...] = 1
        >>> [watched.is_exposed for watched in watch.arrays.values()]
        [True]
        >>> end()
    """
    global _watches
    _here.watch = watch = Watch()
    with _lock:
        _watches = (*_watches, watch)
        chainer.Parameter.raw_array = property(_seen)
        if Watch.usual is None:
            parameter = chainer.Parameter(0, (SMALLEST, 1))
            parameter.raw_array  # noqa: B018
            watch.arrays.clear()
    return watch


def end() -> None:
    """Ends what :func:`begin` began."""
    global _watches
    watch, _here.watch = _here.watch, None
    with _lock:
        _watches = tuple(each for each in _watches if each is not watch)
        if not _watches:
            del chainer.Parameter.raw_array
    # Objects that refer to each other would stay a while.
    watch.arrays.clear()


def _seen(parameter: chainer.Parameter) -> Any:
    """Stands for ``Parameter.raw_array``, through which all public reads go."""
    if parameter._has_chainerx_array:
        return _raw_array(parameter)
    array = parameter._data[0]
    if (
        type(array) is np.ndarray
        and are_weights(array.shape)
        # A parameter in slower memory, or not there yet, has a class of its own.
        and type(parameter) is chainer.Parameter
        # A parameter without a node is being made, and nobody computes with it yet.
        and hasattr(parameter, "_node")
    ):
        own = _here.watch
        for watch in _watches:
            if watch is own:
                watch.see(parameter, array)
            else:
                watch.see_elsewhere(array)
    return array


def _asking(frame: FrameType) -> FrameType:
    """Returns the frame that asked for an array, behind Chainer's properties."""
    for _ in range(3):
        if frame.f_code not in _properties():
            break
        frame = frame.f_back
    return frame


@functools.cache
def _properties() -> frozenset[CodeType]:
    variable = chainer.Variable
    functions = variable.array.fget, variable.data.fget, variable._get_array
    return frozenset(function.__code__ for function in functions)


@functools.cache
def _applying() -> frozenset[CodeType]:
    """Returns the code that reads inputs for a function that is applied to them."""
    code = function_node._extract_apply_in_data.__code__
    # A comprehension in it is a function of its own before Python 3.12.
    return frozenset([code, *(c for c in code.co_consts if isinstance(c, CodeType))])
