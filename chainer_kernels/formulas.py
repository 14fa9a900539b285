"""Formulas of update rules, taken apart, and written as CUDA.

What a formula may use is what Python and C write alike: assignments to names, the four
operations, calls of the functions below, and constants of its module that are float32::

    v = momentum * v - lr * gradient            v = momentum * v - lr * gradient;
    total = v + from_half(g)                    W total = v + static_cast<float>(g);
    return weight, v, g

Literal numbers are refused: one would be a double in C, and what it meets as well.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any, Callable

import numpy as np

Formula = Callable[..., Any]

_FUNCTIONS = {
    "sqrt": "sqrt",
    "min": "min",
    "max": "max",
    "from_half": "static_cast<float>",
    "to_half": "float16",
}
_ALIKE = (
    *(ast.Assign, ast.AugAssign, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Load, ast.Store),
)
# CuPy's names for its loop variable and the number of elements.
_RESERVED = {"i", "n"}


@functools.cache
def state_names(formula: Formula) -> tuple[str, ...]:
    """Returns the names of a formula's states.

    Example:
        >>> from chainer_kernels.update_rules import adam
        >>> state_names(adam)
        ('m', 'v')
    """
    parameters = inspect.signature(formula).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY)[2:]


@functools.cache
def number_names(formula: Formula) -> tuple[str, ...]:
    """Returns the names of a formula's numbers.

    Example:
        >>> from chainer_kernels.update_rules import momentum_sgd
        >>> number_names(momentum_sgd)
        ('lr', 'momentum')
    """
    parameters = inspect.signature(formula).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)


@functools.cache
def as_cuda(formula: Formula) -> str:
    """Returns a formula's statements in CUDA, for arithmetic in a type named ``W``.

    Args:
        formula: A function as in ``update_rules``.

    Raises:
        ValueError: If it uses more of Python than a formula may.

    Example:
        >>> from chainer_kernels.update_rules import momentum_sgd
        >>> as_cuda(momentum_sgd)
        'v = momentum * v - lr * gradient; weight += v;'
    """
    outputs = ["weight", *state_names(formula)]
    names = {name: name for name in ("gradient", *outputs, *number_names(formula))}
    names.update(_FUNCTIONS)
    for name, value in formula.__globals__.items():
        if isinstance(value, np.float32):
            names.setdefault(name, f"{value!s}f")
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(formula))).body
    *statements, last = function.body[ast.get_docstring(function) is not None :]
    returned = getattr(last, "value", None)
    if [ast.unparse(e) for e in getattr(returned, "elts", [returned])] != outputs:
        raise ValueError(f"{formula.__name__} must return {', '.join(outputs)}")
    written = [_in_cuda(each, names, formula.__name__) for each in statements]
    if _RESERVED & names.keys():
        raise ValueError(f"{formula.__name__}: CuPy has a use for {_RESERVED}")
    return " ".join(written)


def _in_cuda(statement: ast.stmt, names: dict[str, str], where: str) -> str:
    """Returns a statement in CUDA; adds a variable that it declares to ``names``."""
    text, declaration = ast.unparse(statement), ""
    if isinstance(statement, ast.Assign):
        variable = ast.unparse(statement.targets[0])
        if variable not in names:
            names[variable] = variable
            declaration = "W "
    for node in ast.walk(statement):
        is_name = isinstance(node, ast.Name)
        if not isinstance(node, _ALIKE) or (is_name and node.id not in names):
            raise ValueError(f"{where} cannot be written in CUDA for {text!r}")
        if is_name:
            node.id = names[node.id]
    return f"{declaration}{ast.unparse(statement)};"
