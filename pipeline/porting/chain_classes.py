"""Classes of chains: in a script, or in a module beside it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from pipeline.porting.script import Script, is_name, walk_scope


class ChainClass(NamedTuple):
    """A class.

    Attributes:
        node: Its definition.
        script: The script that has it, or the module.
        module: Name of the module; empty if the script has it.
    """

    node: ast.ClassDef
    script: Script
    module: str

    def method(self, name: str) -> ast.FunctionDef | None:
        """Returns a method of its own."""
        for each in self.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == name:
                return each
        return None


def class_of(
    script: Script, neighbours: Mapping[str, Script], value: ast.expr
) -> ChainClass | None:
    """Returns the class that a call makes an object of.

    Args:
        script: The script.
        neighbours: Modules beside it, by their names.
        value: The call.
    """
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Name):
        for node in ast.walk(script.tree):
            if isinstance(node, ast.ClassDef) and node.name == value.func.id:
                return ChainClass(node, script, "")
    path, _, name = script.imported(value.func).rpartition(".")
    found = [
        ChainClass(node, module, where)
        for where, module in neighbours.items()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    # A package may import the class from one of its modules.
    exact = [each for each in found if each.module == path]
    return (exact or found)[0] if len(exact or found) == 1 else None


def links(own: ChainClass) -> dict[str, ast.expr]:
    """Returns the children that the constructor makes, and what each is.

    Example:
        >>> script = Script('''class A(Chain):
        ...     def __init__(self, net):
        ...         super().__init__(net=net)
        ...         with self.init_scope():
        ...             self.fc = L.Linear(2)
        ... ''')
        >>> sorted(links(ChainClass(script.tree.body[0], script, '')))
        ['fc', 'net']
    """
    init = own.method("__init__")
    found: dict[str, ast.expr] = {}
    for node in [] if init is None else ast.walk(init):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            is_super = isinstance(owner, ast.Call) and is_name(owner.func, "super")
            if is_super and node.func.attr == "__init__":
                found |= {each.arg: each.value for each in node.keywords if each.arg}
        elif isinstance(node, ast.With) and "init_scope" in own.script.source(
            node.items[0].context_expr
        ):
            found |= _stored(node, _self(init))
    return found


def children(own: ChainClass, call: ast.Call) -> dict[str, str]:
    """Returns the paths of children that a call gives by variables.

    Example:
        >>> script = Script('''class A(Chain):
        ...     def __init__(self, net):
        ...         super().__init__(predictor=net)
        ... model = A(mlp)
        ... ''')
        >>> children(
        ...     ChainClass(script.tree.body[0], script, ''), script.tree.body[1].value
        ... )
        {'mlp': '/predictor'}
    """
    init = own.method("__init__")
    if init is None:
        return {}
    names = [arg.arg for arg in init.args.args[1:]]
    given = {**dict(zip(names, call.args)), **{k.arg: k.value for k in call.keywords}}
    return {
        given[value.id].id: f"/{name}"
        for name, value in links(own).items()
        if isinstance(value, ast.Name) and isinstance(given.get(value.id), ast.Name)
    }


def plain_attributes(own: ChainClass) -> set[str]:
    """Returns the attributes that the constructor sets to values, and not to links."""
    init = own.method("__init__")
    if init is None:
        return {"xp"}
    made, defaults = links(own), init.args.defaults
    last = init.args.args[len(init.args.args) - len(defaults) :]
    flags = {
        arg.arg for arg, value in zip(last, defaults) if isinstance(value, ast.Constant)
    }
    return {"xp"} | {
        name
        for name, value in _stored(init, _self(init)).items()
        if name not in made or not any(_may_be_link(n, flags) for n in ast.walk(value))
    }


def is_global(script: Script, name: str) -> bool:
    """Returns whether a module defines or imports a name."""
    for node in walk_scope(script.tree):
        is_named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (
            node.name == name
        )
        is_stored = is_name(node, name) and isinstance(node.ctx, ast.Store)
        is_imported = isinstance(node, ast.alias) and name in (
            node.asname or node.name.partition(".")[0],
        )
        if is_named or is_stored or is_imported:
            return True
    return False


def is_used(script: Script, name: str) -> bool:
    """Returns whether a script has a variable, a function or a class of this name."""
    return is_global(script, name) or any(
        is_name(node, name) or (isinstance(node, ast.arg) and node.arg == name)
        for node in ast.walk(script.tree)
    )


def _self(function: ast.FunctionDef) -> str:
    return function.args.args[0].arg if function.args.args else "self"


def _stored(block: ast.AST, self: str) -> dict[str, ast.expr]:
    """Returns the attributes that a block sets, and to what."""
    return {
        target.attr: node.value
        for node in ast.walk(block)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and is_name(target.value, self)
    }


def _may_be_link(node: ast.AST, flags: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id not in flags
    return isinstance(node, (ast.Call, ast.Attribute, ast.Subscript))
