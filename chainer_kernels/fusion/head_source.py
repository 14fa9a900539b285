"""The loops of a batch normalization and the functions behind it, in Numba's Python.

For ``relu(BN(x))``, where rows belong to channels, they are::

    def forward_rows(x, y, mean, scale, shift):
        for r in range(x.shape[0]):
            ...
            for i in range(x.shape[1]):
                v0 = normalized(x[r, i], mean[r], scale[r], shift[r])
                v2 = relu(v0)
                y[r, i] = v2

    def gradient_rows(x, gy, g, mean, scale, shift):
        ...                                           the same for g = relu_grad(v2, gy)

    def sums_rows(x, gy, mean, scale, shift, sums, products):
        for start in range(0, x.shape[0], step):      blocks, which stay in the cache
            gradient_rows(x[block], gy[block], g, ...)
            row_products(x[block], g, ...)

    def inputs_rows(x, gy, gx, mean, scale, shift, slope, rest):
        ...                                           the same for combined(g, ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainer_kernels.fusion.operations import SCALARS
from chainer_kernels.fusion.program import Program, Step
from chainer_kernels.fusion.source import expression

#: Number of the first value of a program: the output of the batch normalization.
HEAD = 0

#: Parameters of the normalization: each has one number for each channel.
SCALING = "mean", "scale", "shift"

#: Numba's types of a matrix, and of numbers for each row or column.
ARRAY, ROW = "f4[:, ::1]", "f4[::1]"


class HeadSource(NamedTuple):
    """A loop over rows, or over columns, of several arrays.

    Attributes:
        name: Name of the function.
        reads: Numbers of the values that the function reads. Its first argument is
            always ``x``, the input of the normalization; the other values follow in
            this order.
        signature: Types of the arguments, as Numba writes them.
        lines: Source lines of the function.
    """

    name: str
    reads: tuple[int, ...]
    signature: str
    lines: tuple[str, ...]


def elementwise(
    program: Program, kind: str, name: str, value: int, given: Sequence[int] = ()
) -> HeadSource:
    """Returns the loop that computes a value of a program.

    Args:
        program: The functions that follow the batch normalization.
        kind: ``'rows'`` or ``'columns'``.
        name: First part of the loop's name, such as ``'forward'``.
        value: Number of the value.
        given: Numbers of known values.
    """
    steps, reads = program.needed([value], given)
    lines = [*_body(steps, reads, kind), f"out[i] = v{value}"]
    return _source(f"{name}_{kind}", kind, reads, lines, SCALING)


def inputs(program: Program, kind: str, given: Sequence[int] = ()) -> HeadSource:
    """Returns the loop that computes the gradient of the normalization's input.

    Args:
        program: The functions that follow the batch normalization.
        kind: ``'rows'`` or ``'columns'``.
        given: Numbers of known values.
    """
    value = program.gradients[HEAD]
    steps, reads = program.needed([value], given)
    at = "" if kind == "rows" else "[i]"
    parts = ", ".join(f"{each}{at}" for each in ("mean", "scale", "slope", "rest"))
    last = f"out[i] = combined(v{value}, x[i], {parts})"
    lines = [*_body(steps, reads, kind), last]
    return _source(f"inputs_{kind}", kind, reads, lines, (*SCALING, "slope", "rest"))


def sums(inner: HeadSource, kind: str, is_kept: bool) -> HeadSource:
    """Returns the loop that adds up gradients and their products with the input.

    Args:
        inner: The loop that computes the gradients to add up.
        kind: ``'rows'`` or ``'columns'``.
        is_kept: Whether the gradients are also written to an output array.
    """
    name = f"sums_{kind}_kept" if is_kept else f"sums_{kind}"
    if kind == "rows":
        types = dict.fromkeys((*SCALING, "sums", "products"), ROW)
        parts = _parts(["mean", "sums", "products"])
        call = f"row_products(x[start:end], g, {parts})"
        return _in_blocks(name, inner, kind, types, call, is_kept=is_kept)
    types = {**dict.fromkeys(SCALING, ROW), "starts": "i8[::1]"}
    types.update(dict.fromkeys(("sums", "products"), ARRAY))
    call = "column_products(x[start:end], g, mean, sums[b], products[b])"
    return _in_blocks(name, inner, kind, types, call, is_kept=is_kept, has_starts=True)


def _parts(names: Sequence[str]) -> str:
    return ", ".join(f"{name}[start:end]" for name in names)


def _in_blocks(
    name: str,
    inner: HeadSource,
    kind: str,
    types: dict[str, str],
    call: str,
    is_kept: bool = False,
    has_starts: bool = False,
) -> HeadSource:
    """Returns a loop over blocks of rows that calls two other loops for each block.

    Args:
        name: Name of the loop.
        inner: The first loop to call, which computes a gradient ``g``.
        kind: ``'rows'`` or ``'columns'``.
        types: Types of the arguments behind the arrays that ``inner`` reads, by name.
        call: The second call, which reads ``g``.
        is_kept: Whether ``g`` is a slice of an output array; otherwise it is scratch
            memory.
        has_starts: Whether the loop's arguments include the starts of groups of blocks
            and a range of groups to run.
    """
    arrays = ["x", *(f"a{v}" for v in inner.reads if v != HEAD)]
    kept = ["out"] if is_kept else []
    types = {**dict.fromkeys([*arrays, *kept], ARRAY), **types}
    head = [
        "for start in range(0, x.shape[0], step):",
        "    end = min(start + step, x.shape[0])",
    ]
    at = ""
    if has_starts:
        types = {"first": "i8", "last": "i8", **types}
        head = [
            "for b in range(first, last):",
            "    sums[b, :] = F(0)",
            "    products[b, :] = F(0)",
            "    for start in range(starts[b], starts[b + 1], step):",
            "        end = min(start + step, starts[b + 1])",
        ]
        at = "    "
    scratch = "scratch = np.empty((min(step, x.shape[0]), x.shape[1]), F)"
    scaling = _parts(SCALING) if kind == "rows" else ", ".join(SCALING)
    lines = [
        f"def {name}({', '.join(types)}):",
        "    step = max(ONE, BLOCK_SIZE // x.shape[1])",
        *([] if is_kept else [f"    {scratch}"]),
        *(f"    {line}" for line in head),
        f"{at}        g = {'out[start:end]' if is_kept else 'scratch[: end - start]'}",
        f"{at}        {inner.name}({_parts(arrays)}, g, {scaling})",
        f"{at}        {call}",
    ]
    signature = f"void({', '.join(types.values())})"
    return HeadSource(name, inner.reads, signature, tuple(lines))


def module(source: HeadSource, called: Sequence[HeadSource]) -> str:
    """Returns the text of a module with a loop and the loops that it calls."""
    imports = [
        "from math import sqrt",
        "import numpy as np",
        "from chainer_kernels.compiling import Loop",
        "from chainer_kernels.loops.normalized import (",
        "    BLOCK_SIZE, ONE, column_products, combined, normalized, row_products,",
        ")",
        *(
            f"from chainer_kernels.loops.{place} import {name}"
            for name, place in SCALARS.items()
        ),
        "F = np.float32",
    ]
    lines = list(imports)
    for each in called:
        lines += each.lines
        # The inner loop is compiled first and alone, so that it is vectorized.
        made = f"Loop({each.name}, {each.signature!r}, is_exact=True).compiled"
        lines.append(f"{each.name} = {made}")
    return "\n".join([*lines, *source.lines, ""])


def _body(steps: Sequence[Step], reads: Sequence[int], kind: str) -> list[str]:
    at = "" if kind == "rows" else "[i]"
    head = f"v{HEAD} = normalized(x[i], mean{at}, scale{at}, shift{at})"
    return [
        *([head] if HEAD in reads else []),
        *(f"v{v} = b{v}[i]" for v in reads if v != HEAD),
        *(f"v{step.value} = {expression(step)}" for step in steps),
    ]


def _source(
    name: str,
    kind: str,
    reads: Sequence[int],
    inner: Sequence[str],
    parameters: Sequence[str],
) -> HeadSource:
    """Returns a loop over elements; rows are named as ``x``, ``b2`` and ``out``."""
    others = [v for v in reads if v != HEAD]
    types = dict.fromkeys(["all_x", *(f"a{v}" for v in others), "all_out"], ARRAY)
    rows = ["x = all_x[r]", *(f"b{v} = a{v}[r]" for v in others), "out = all_out[r]"]
    if kind == "rows":
        types.update(dict.fromkeys([f"{each}s" for each in parameters], ROW))
        rows += [f"{each} = {each}s[r]" for each in parameters]
    else:
        types.update(dict.fromkeys(parameters, ROW))
    lines = [
        f"def {name}({', '.join(types)}):",
        "    for r in range(all_x.shape[0]):",
        *(f"        {line}" for line in rows),
        "        for i in range(x.size):",
        *(f"            {line}" for line in inner),
    ]
    signature = f"void({', '.join(types.values())})"
    return HeadSource(name, tuple(reads), signature, tuple(lines))
