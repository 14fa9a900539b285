"""Repairs of Chainer's own slips, which no version of anything else would cure."""

from chainer_compat._shim import Edit, Shim

SHIMS = (
    Shim(
        name="softmax-cross-entropy-types",
        module="chainer.functions.loss.softmax_cross_entropy",
        why="targets of a wrong shape or type end in 'An Expr instance cannot be "
        "evaluated as bool' instead of what was expected and given",
        edits=(
            Edit(
                "        if t_type.dtype.kind == 'i':\n",
                "        if type_check.eval(t_type.dtype.kind) == 'i':\n",
            ),
        ),
    ),
)
