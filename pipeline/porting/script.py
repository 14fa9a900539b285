"""A training script that is read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Union

Scope = Union[ast.Module, ast.FunctionDef]

#: Statements that define a scope of their own.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Script:
    r"""The text of a script, its syntax tree, and the names that it imports.

    Args:
        text: The source.

    Attributes:
        text (str): The source.
        tree (ast.Module): Its syntax tree.
        identifiers (set of str): All names that occur in it.

    Raises:
        SyntaxError: If this Python cannot parse it.

    Example:
        >>> script = Script('import chainer.links as L\nmodel = L.Classifier(net)')
        >>> call = script.tree.body[1].value
        >>> script.imported(call.func), script.source(call)
        ('chainer.links.Classifier', 'L.Classifier(net)')
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._bytes = text.encode()
        self._parents = {
            child: node
            for node in ast.walk(self.tree)
            for child in ast.iter_child_nodes(node)
        }
        self._aliases, self._stars = _imports(self.tree)
        self.identifiers = _identifiers(self.tree)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Returns the node that contains this one directly."""
        return self._parents.get(node)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes that contain this one, the innermost first."""
        while (above := self._parents.get(node)) is not None:
            yield above
            node = above

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement that contains a node."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def scope(self, node: ast.AST) -> Scope:
        """Returns the function that contains a node, or the module."""
        for above in self.parents(node):
            if isinstance(above, (ast.FunctionDef, ast.Module)):
                return above
        return self.tree

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Returns the innermost class that contains a node."""
        found = (n for n in self.parents(node) if isinstance(n, ast.ClassDef))
        return next(found, None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Returns the statements among which a statement is."""
        parent = self._parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        raise ValueError(f"line {statement.lineno}: the statement is in no block")

    def path(self, node: ast.AST) -> list[ast.stmt]:
        """Returns the statements that contain a node, the outermost first."""
        found = [n for n in (node, *self.parents(node)) if isinstance(n, ast.stmt)]
        return found[::-1]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Returns where a node begins and ends, in bytes of the source."""
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """Returns where whole lines begin and end, in bytes of the source."""
        return self._starts[first - 1], self._starts[min(last, len(self._starts) - 1)]

    def source(self, node: ast.AST) -> str:
        """Returns the text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def between(self, start: int, end: int) -> str:
        """Returns the text between two positions in bytes."""
        return self._bytes[start:end].decode()

    def indentation(self, statement: ast.stmt) -> str:
        """Returns the blanks before a statement, or before its block."""
        start = self._starts[statement.lineno - 1]
        before = self.between(start, start + statement.col_offset)
        return (
            before
            if not before.strip()
            else before[: len(before) - len(before.lstrip())]
        )

    def is_alone(self, statement: ast.stmt) -> bool:
        """Returns whether no other code is on the lines of a statement."""
        start, end = self.span(statement)
        first, last = self.lines(statement.lineno, statement.end_lineno)
        after = self.between(end, last).strip()
        return not self.between(first, start).strip() and after[:1] in ("", "#")

    def imported(self, node: ast.AST) -> str:
        """Returns the full name of what an expression refers to.

        Returns:
            A name such as ``'chainer.links.Classifier'``; an empty one if the first
            part of the expression is not imported.
        """
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self._aliases.get(node.id)
        if root is None and not parts and len(self._stars) == 1:
            root = f"{self._stars[0]}.{node.id}"
        return ".".join([root, *reversed(parts)]) if root else ""

    def is_chainers(self, node: ast.AST, *names: str) -> bool:
        """Returns whether an expression is one of these names of Chainer(MN)."""
        package, _, rest = self.imported(node).partition(".")
        return package in ("chainer", "chainermn") and rest.split(".")[-1] in names

    def calls(self, *names: str, within: ast.AST | None = None) -> list[ast.Call]:
        """Returns calls of these names of Chainer or ChainerMN, in their order."""
        found = [
            node
            for node in ast.walk(within or self.tree)
            if isinstance(node, ast.Call) and self.is_chainers(node.func, *names)
        ]
        return sorted(found, key=self.span)

    def methods(self, name: str, within: ast.AST | None = None) -> list[ast.Call]:
        """Returns calls of methods of this name, in their order."""
        found = [
            node
            for node in ast.walk(within or self.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
        ]
        return sorted(found, key=self.span)

    def assigned(self, name: str, within: ast.AST) -> list[ast.Assign]:
        """Returns the assignments of a variable in a scope, in their order."""
        return [
            node
            for node in walk_scope(within)
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ]

    def uses(self, name: str, within: ast.AST) -> list[ast.Name]:
        """Returns where a variable is read, nested functions included."""
        found = [
            node
            for node in ast.walk(within)
            if isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
        ]
        return sorted(found, key=self.span)

    def unused(self, name: str) -> str:
        """Returns the name, or a longer one if the script has it already."""
        while name in self.identifiers:
            name += "_"
        return name

    def mentions(self, name: str) -> bool:
        """Returns whether an attribute or a variable of this name occurs."""
        return name in self.identifiers


def walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a scope in their order, without those of scopes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, SCOPES):
            yield from walk_scope(child)


def is_name(node: ast.AST | None, name: str) -> bool:
    """Returns whether an expression is this variable."""
    return isinstance(node, ast.Name) and node.id == name


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Returns an argument of a call, by its keyword or its position.

    Example:
        >>> call = ast.parse('f(a, key=b)').body[0].value
        >>> argument(call, 'key').id, argument(call, 'first', 0).id
        ('b', 'a')
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def common_block(paths: Sequence[Sequence[ast.stmt]], script: Script) -> int:
    r"""Returns how many of the outermost statements of the paths are in one block.

    Example:
        >>> script = Script('if a:\n    b = 1\nelse:\n    c = 2\nd = 3')
        >>> first, last = script.tree.body[0].body[0], script.tree.body[0].orelse[0]
        >>> common_block([script.path(first), script.path(last)], script)
        0
    """
    depth = 0
    while all(len(path) > depth + 1 for path in paths):
        blocks = [script.block(path[depth + 1]) for path in paths]
        if any(path[depth] is not paths[0][depth] for path in paths):
            break
        if any(block is not blocks[0] for block in blocks):
            break
        depth += 1
    return depth


def _imports(tree: ast.Module) -> tuple[dict[str, str], list[str]]:
    """Returns the full names of imported names, and modules of star imports."""
    names, stars = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    root = alias.name.partition(".")[0]
                    names[root] = root
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    if module.partition(".")[0] == "chainer":
                        stars.append(module)
                else:
                    names[alias.asname or alias.name] = f"{module}.{alias.name}"
    return names, stars


def _identifiers(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
            found.add(node.name.rpartition(".")[2])
    return found
