"""Code in the language of LLVM: vectors of float32 that stay in registers.

Numba's own arrays keep a sum in memory. Functions that are generated with `VectorCode`
keep it in a register over a whole loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


class VectorCode:
    """The code of one function: arrays by their data, and vectors of their elements.

    Args:
        builder: LLVM's builder of the function.
        width: Number of elements of a vector.
    """

    def __init__(self, builder: Any, width: int) -> None:
        self.builder, self._width = builder, width
        self._kind = ir.VectorType(_F32, width)

    def at(self, pointer: Any, *terms: Any) -> Any:
        """Returns the address of the element at a sum of indexes."""
        index, *others = (
            ir.Constant(_I64, term) if isinstance(term, int) else term for term in terms
        )
        for other in others:
            index = self.builder.add(index, other)
        return self.builder.gep(pointer, [index])

    def times(self, index: Any, number: int) -> Any:
        """Returns an index times a number."""
        return self.builder.mul(index, ir.Constant(_I64, number))

    def number(self, pointer: Any, *terms: Any) -> Any:
        """Returns the element at a sum of indexes."""
        return self.builder.load(self.at(pointer, *terms))

    def vector(self, pointer: Any, *terms: Any) -> Any:
        """Returns neighbouring elements as a vector, from a sum of indexes on."""
        address = self.builder.bitcast(
            self.at(pointer, *terms), self._kind.as_pointer()
        )
        return self.builder.load(address, align=4)

    def store(self, vector: Any, pointer: Any, *terms: Any) -> None:
        """Writes a vector to neighbouring elements, from a sum of indexes on."""
        kind = vector.type.as_pointer()
        address = self.builder.bitcast(self.at(pointer, *terms), kind)
        self.builder.store(vector, address, align=4)

    def repeated(self, number: Any) -> Any:
        """Returns a vector of one number."""
        undefined = ir.Constant(self._kind, ir.Undefined)
        one = self.builder.insert_element(undefined, number, ir.Constant(_I32, 0))
        return self.shuffled(one, undefined, [0] * self._width)

    def shuffled(self, a: Any, b: Any, places: Sequence[int]) -> Any:
        """Returns elements of two vectors, by their places in both."""
        kind = ir.VectorType(_I32, len(places))
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, list(places)))

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        """Returns ``a * b + total``."""
        kind = ir.FunctionType(self._kind, [self._kind] * 3)
        # Fused where the processor does, and two instructions elsewhere.
        function = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.fmuladd.v{self._width}f32"
        )
        return self.builder.call(function, [a, b, total])

    def sums(
        self,
        start: Any,
        end: Any,
        n: int,
        add: Callable[[Any, Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Returns vectors of sums over a range, which begin as zeros.

        Args:
            start: The first index.
            end: The index behind the last.
            n: Number of vectors.
            add: Takes an index and the sums before it, and returns those after it.
        """
        builder, before = self.builder, self.builder.basic_block
        body = builder.append_basic_block("sum")
        behind = builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", start, end), body, behind)
        builder.position_at_end(body)
        index = builder.phi(_I64)
        sums = [builder.phi(self._kind) for _ in range(n)]
        found = add(index, sums)
        following = builder.add(index, ir.Constant(_I64, 1))
        index.add_incoming(start, before)
        index.add_incoming(following, builder.basic_block)
        zeros = ir.Constant(self._kind, [0.0] * self._width)
        for total, each in zip(sums, found):
            total.add_incoming(zeros, before)
            total.add_incoming(each, builder.basic_block)
        is_more = builder.icmp_signed("<", following, end)
        last = builder.basic_block
        builder.cbranch(is_more, body, behind)
        builder.position_at_end(behind)
        totals = [builder.phi(self._kind) for _ in range(n)]
        for total, each in zip(totals, found):
            total.add_incoming(zeros, before)
            total.add_incoming(each, last)
        return totals

    def transposed(self, rows: Sequence[Any]) -> list[Any]:
        """Returns the columns of 8 vectors of 8 numbers, in 24 shuffles."""
        low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        twos = [
            self.shuffled(rows[i], rows[i + 1], half)
            for i in range(0, 8, 2)
            for half in (low, high)
        ]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        fours = [
            self.shuffled(twos[i + j], twos[i + j + 2], half)
            for i in (0, 4)
            for j in (0, 1)
            for half in (low, high)
        ]
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        return [
            self.shuffled(fours[i], fours[i + 4], half)
            for half in (low, high)
            for i in range(4)
        ]


def data_of(
    context: Any, builder: Any, signature: Any, arguments: Sequence[Any]
) -> list[Any]:
    """Returns arguments, with the address of its data for each array."""
    return [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(signature.args, arguments)
    ]
