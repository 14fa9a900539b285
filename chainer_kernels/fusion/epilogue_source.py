"""The loop of the functions behind a product of matrices, in Numba's Python.

The loop overwrites the product ``z``. On the left is the loop of ``relu(z + b)``, whose
backward needs the output only. On the right is the loop of ``dropout(relu(z + b))``,
whose backward needs the sum::

    def epilogue(z, bias):              def epilogue(z, x1, y, bias):
        for r in range(z.shape[0]):         for r in range(z.shape[0]):
            ...                                 ...
            for i in range(bias.size):          for i in range(bias.size):
                v0 = z[r, i] + bias[i]              v0 = z[r, i] + bias[i]
                v2 = relu(v0)                       z[r, i] = v0
                z[r, i] = v2                        v3 = relu(v0)
                                                    v4 = v3 * x1[r, i]
                                                    y[r, i] = v4
"""

from __future__ import annotations

from chainer_kernels.fusion.program import Program
from chainer_kernels.fusion.source import Source, expression

#: Number of the first value of a program: the product including its bias.
HEAD = 0


def epilogue(program: Program, has_bias: bool, keeps_head: bool) -> Source:
    """Returns the loop that computes the output.

    Args:
        program: The functions that follow the product.
        has_bias: Whether the loop first adds a bias, a number for each column. Arrays
            are matrices then; otherwise they have one dimension.
        keeps_head: Whether the backward needs the product including its bias. The
            output has its own array then.
    """
    steps, leaves = program.needed([program.output])
    others = [v for v in leaves if v != HEAD]
    arguments = ["z", *(f"x{v}" for v in others), *["y"] * keeps_head]
    values = [f"v{v} = a{v}[i]" for v in others]
    values += [f"v{step.value} = {expression(step)}" for step in steps]
    output = f"{'out' if keeps_head else 'head'}[i] = v{program.output}"
    body = [
        f"v{HEAD} = head[i]{' + bias[i]' * has_bias}",
        *[f"head[i] = v{HEAD}"] * keeps_head,
        *values,
        output,
    ]
    at = "[r]" * has_bias
    views = [f"head = z{at}", *(f"a{v} = x{v}{at}" for v in others)]
    inner = [
        *views,
        *[f"out = y{at}"] * keeps_head,
        "for i in range(head.size):",
        *(f"    {line}" for line in body),
    ]
    if has_bias:
        inner = ["for r in range(z.shape[0]):", *(f"    {line}" for line in inner)]
    types = ["f4[:, ::1]" if has_bias else "f4[::1]"] * len(arguments)
    if has_bias:
        arguments.append("bias")
        types.append("f4[::1]")
    lines = [f"def epilogue({', '.join(arguments)}):", *(f"    {k}" for k in inner)]
    writes = (program.output,) if keeps_head else ()
    signature = f"void({', '.join(types)})"
    return Source("epilogue", (HEAD, *others), writes, tuple(lines), signature)
