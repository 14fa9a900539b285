"""Loops that are compiled when they are called first, and kept on disk.

Numba compiles a loop for the types it is called with, in the middle of a training step,
and once more for every other memory order. A :class:`Loop` has one signature, of
contiguous arrays, and no other. :mod:`.code_cache` keeps the code.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from chainer_kernels.code_cache import KeptCode, cache_directory

#: All loops that are loaded, in the order of their modules.
LOOPS: list[Loop] = []


class Loop:
    """A function over numbers and contiguous arrays, compiled at its first call.

    Args:
        function: In the Python that Numba knows. It needs no lock of Python's.
        signature: The types of its arguments and its result, as Numba writes them.
        is_sum: Whether additions may be in any order, so that they run in vector
            instructions. The order depends on lengths only.
        is_exact: Whether products are rounded before they are added to, as NumPy's are.
        features: Features that the processor must have, by LLVM's names.
    """

    def __init__(
        self,
        function: Callable,
        signature: str,
        is_sum: bool = False,
        is_exact: bool = False,
        features: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.signature, self._features = signature, features
        self._function = function
        freedoms = {"reassoc": is_sum, "contract": not is_exact}
        self._fast = {name for name, is_free in freedoms.items() if is_free}
        LOOPS.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the compiled function."""
        try:
            return self.compiled(*arguments)
        except TypeError:
            # Numba takes any array for one to be written to, if it can be.
            behaved = [_behaved(a) for a in arguments]
            copies = [(a, b) for a, b in zip(arguments, behaved) if a is not b]
            if not copies:
                raise
            result = self.compiled(*behaved)
            if any(a.tobytes() != b.tobytes() for a, b in copies):
                raise ValueError(
                    f"{self.__name__} writes to an array that is read-only or unaligned"
                ) from None
            return result

    @property
    def is_possible(self) -> bool:
        """Whether the processor has what the loop needs. Elsewhere LLVM would abort."""
        return not self._features or _processor().issuperset(self._features)

    @functools.cached_property
    def compiled(self) -> Callable:
        """The compiled function; it refuses other types."""
        # Without "numpy" a division tests for zero, and nothing runs in vectors.
        options = {"nogil": True, "error_model": "numpy", "fastmath": self._fast}
        dispatcher = njit(**options)(self._function)
        dispatcher.compile(self.signature)
        dispatcher.disable_compile()
        return dispatcher


def njit(**options: Any) -> Callable[[Callable], Any]:
    """Returns Numba's decorator of that name, which keeps code in our directory."""

    def decorate(function: Callable) -> Any:
        dispatcher = numba.njit(function, **options)
        kept = _kept_code(function)
        if kept is None:
            return dispatcher
        compile_ = dispatcher.compile

        def compile_once(signature: Any) -> Any:
            # Numba's lock first: who has it may compile what calls this function.
            with global_compiler_lock, kept.in_turn():
                return compile_(signature)

        dispatcher._cache, dispatcher.compile = kept, compile_once
        return dispatcher

    return decorate


def _kept_code(function: Callable) -> KeptCode | None:
    """Returns what keeps a function's code, if there is a place for it."""
    folder = cache_directory()
    if folder is None:
        return None
    try:
        return KeptCode(function, folder)
    except OSError:
        # A function that is typed at a prompt has no file.
        return None


@functools.cache
def _processor() -> frozenset[str]:
    """Returns the features of the processor for which Numba compiles."""
    *_, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(each[1:] for each in features.split(",") if each.startswith("+"))


def loop(
    signature: str,
    is_sum: bool = False,
    is_exact: bool = False,
    features: Sequence[str] = (),
) -> Callable[[Callable], Loop]:
    """Makes a function a :class:`Loop`, which has the arguments.

    Example:
        >>> import numpy as np
        >>> @loop('void(f4[::1], f4)')
        ... def scale(values, factor):
        ...     for i in range(values.size):
        ...         values[i] *= factor
        >>> array = np.ones(3, 'f')
        >>> scale(array, np.float32(2))
        >>> array
        array([2., 2., 2.], dtype=float32)
    """
    return lambda function: Loop(function, signature, is_sum, is_exact, features)


def _behaved(argument: Any) -> Any:
    """Returns an argument, or the copy of an array that is read-only or not aligned."""
    is_array = isinstance(argument, np.ndarray)
    return argument.copy() if is_array and not argument.flags.behaved else argument
