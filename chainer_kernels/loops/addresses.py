"""Memory by its addresses, in the language of LLVM."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I64 = ir.IntType(8), ir.IntType(64)
#: Bytes of :func:`space`.
_SPACE = 4096


def pointer(builder: Any, address: Any, kind: Any = _I8) -> Any:
    """Returns an address as a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def moved(builder: Any, address: Any, step: Any, n: int = 1) -> Any:
    """Returns an address plus ``n`` steps, a number or a value."""
    if isinstance(step, int):
        return builder.add(address, ir.Constant(_I64, n * step))
    return builder.add(address, builder.mul(step, ir.Constant(_I64, n)))


@intrinsic
def space(context: Any) -> Any:
    """Returns the address of 4096 bytes, which are there until the function ends."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.ArrayType(_I8, _SPACE)
        place = cgutils.alloca_once(builder, kind)
        place.align = 64
        return builder.ptrtoint(place, _I64)

    return types.int64(), generate


@intrinsic
def clear(context: Any, target: Any, n_bytes: Any) -> Any:
    """Fills bytes with zeros, from an address on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, n_bytes = args
        cgutils.memset(builder, pointer(builder, target), n_bytes, 0)
        return context.get_dummy_value()

    return types.void(target, n_bytes), generate


@intrinsic
def copy(context: Any, source: Any, target: Any, n_bytes: Any) -> Any:
    """Copies bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target, n_bytes = args
        places = (pointer(builder, address) for address in (target, source))
        cgutils.raw_memcpy(builder, *places, n_bytes, 1)
        return context.get_dummy_value()

    return types.void(source, target, n_bytes), generate
