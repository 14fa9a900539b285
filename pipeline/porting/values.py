"""Values of a variable: what is assigned to it, or given by the only call."""

from __future__ import annotations

import ast
from typing import NamedTuple

from pipeline.porting.script import Scope, Script


class Passed(NamedTuple):
    """A variable that is given to a function.

    Attributes:
        name: The variable.
        scope: The function that gives it, or the module.
        statement: The statement that calls.
    """

    name: str
    scope: Scope
    statement: ast.stmt


class Values(NamedTuple):
    """Where the values of a variable are from.

    Attributes:
        found: The values, in the order of their lines.
        passed: Variables that were passed on to it.
    """

    found: list[ast.expr]
    passed: list[Passed]


def values_of(script: Script, name: str, scope: Scope) -> Values:
    """Returns the values of a variable.

    Args:
        script: The script.
        name: The variable.
        scope: The function or module that has it.

    Example:
        >>> script = Script('''def train(model):
        ...     pass
        ... net = Net()
        ... train(net)
        ... ''')
        >>> values = values_of(script, 'model', script.tree.body[0])
        >>> [script.source(each) for each in values.found], values.passed[0].name
        (['Net()'], 'net')
    """
    assigned = script.assigned(name, scope)
    if assigned or not isinstance(scope, ast.FunctionDef):
        return Values([each.value for each in assigned], [])
    calls = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == scope.name
    ]
    given = _given(calls[0], scope, name) if len(calls) == 1 else None
    if given is None or script.class_of(scope) is not None:
        return Values([], [])
    if not isinstance(given, ast.Name):
        return Values([given], [])
    outer = script.scope(calls[0])
    if outer is scope:
        return Values([], [])
    passed = Passed(given.id, outer, script.statement(calls[0]))
    before = values_of(script, given.id, outer)
    return Values(before.found, [passed, *before.passed])


def _given(call: ast.Call, function: ast.FunctionDef, name: str) -> ast.expr | None:
    """Returns the argument of a call that becomes a variable of the function."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [arg.arg for arg in function.args.args]
    if name not in names or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    position = names.index(name)
    return call.args[position] if position < len(call.args) else None
