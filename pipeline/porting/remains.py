"""Uses of the model behind the pipeline, where a rank has only its own stage.

A function may be called there, wherever it is defined.
"""

from __future__ import annotations

import ast

from pipeline.porting.edits import removal, replacement
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Scope, Script, argument, is_name, walk_scope

NOUN = "model"
FINDS = "other uses of the model, ``DumpGraph``, ``ParameterStatistics``"
WRITES = "``pipe.predict(x)`` for ``model.predictor(x)``"
PAGE = "howto/take_a_chain_apart"

_MOVES = ("to_cpu", "to_gpu", "to_device", "to_intel64", "to_chx")
# Attributes that have nothing to do with layers.
_PLAIN = ("__class__", "device", "name", "xp")


def find(
    script: Script, parts: Parts, handled: list[tuple[int, int]], refused: set[int]
) -> list[Finding]:
    """Finds uses of the model that no other rule has changed.

    Args:
        script: The script.
        parts: Its parts.
        handled: Stretches of the source that other rules replace.
        refused: Lines with obstacles that other rules have found.
    """
    findings = []
    for call in script.calls("DumpGraph", "dump_graph"):
        text = "no rank has the graph of the whole model: DumpGraph is left out"
        statement = script.statement(call)
        is_alone = isinstance(statement, ast.Expr)
        edits = (removal(script, statement),) if is_alone else ()
        findings.append(Finding(call.lineno, text, edits, "howto/trainer"))
    names = dict.fromkeys([parts.model, *parts.children])
    for use in [use for name in names for use in script.uses(name, parts.scope)]:
        start, end = script.span(use)
        is_handled = any(a <= start and end <= b for a, b in handled)
        statement = script.statement(use)
        lines = range(statement.lineno, statement.end_lineno + 1)
        is_handled = is_handled or not refused.isdisjoint(lines)
        may_be_after = parts.is_after(use) or _is_in_function(script, parts, use)
        if is_handled or not may_be_after or _is_hidden(script, parts.scope, use):
            continue
        findings.append(_use(script, parts, use))
    for each in parts.passed:
        for use in script.uses(each.name, each.scope):
            is_after = use.lineno > each.statement.end_lineno
            if is_after and not _is_hidden(script, each.scope, use):
                findings.append(_refused(script, use, f"behind {parts.scope.name}()"))
    return findings


def _is_in_function(script: Script, parts: Parts, use: ast.Name) -> bool:
    """Returns whether a function in the scope uses the model when it is called."""
    for above in script.parents(use):
        if above is parts.scope:
            return False
        if isinstance(above, (ast.FunctionDef, ast.Lambda)):
            return True
    return False


def _is_hidden(script: Script, scope: Scope, use: ast.Name) -> bool:
    """Returns whether a function in the scope has a variable of the same name."""
    for above in script.parents(use):
        if above is scope:
            return False
        if isinstance(above, (ast.FunctionDef, ast.Lambda)):
            if use.id in [arg.arg for arg in above.args.args]:
                return True
            if any(
                is_name(node, use.id) and isinstance(node.ctx, ast.Store)
                for node in walk_scope(above)
            ):
                return True
    return True


def _use(script: Script, parts: Parts, use: ast.Name) -> Finding:
    node, parent = use, script.parent(use)
    while isinstance(parent, ast.Attribute):
        node, parent = parent, script.parent(parent)
    source = script.source(node)
    if isinstance(node, ast.Attribute) and node.attr in _MOVES:
        text = "the links of the model move, and so do the layers of this rank's stage"
        return Finding(use.lineno, text)
    first = script.parent(use)
    if isinstance(first, ast.Attribute) and first.attr in _PLAIN:
        return Finding(use.lineno, "")
    is_call = isinstance(parent, ast.Call) and parent.func is node
    is_chain = source == parts.chain or parts.children.get(source) == parts.root != ""
    if is_call and is_chain and len(parent.args) == 1:
        x = script.source(parent.args[0])
        parts.imports.add("chainer.as_variable")
        edit = replacement(script, parent, f"as_variable({parts.pipe}.predict({x}))")
        text = "the output of the whole model, on every rank; all ranks must ask for it"
        return Finding(use.lineno, text, (edit,), "tutorial")
    if isinstance(parent, ast.Return) and _is_returned_unread(script, parts):
        text = (
            "a rank returns the model, of which it trained its layers; nothing reads it"
        )
        return Finding(use.lineno, text)
    statistics = isinstance(parent, ast.Call) and script.is_chainers(
        parent.func, "ParameterStatistics"
    )
    if statistics and argument(parent, "links", 0) is node:
        edit = replacement(script, node, f"{parts.optimizer}.target")
        text = "statistics of the layers of each rank's stage"
        return Finding(use.lineno, text, (edit,), "howto/trainer")
    where = "behind the updater"
    if not parts.is_after(use):
        where = "in a function that may be called behind the updater"
    return _refused(script, node, where)


def _refused(script: Script, node: ast.expr, where: str) -> Finding:
    return obstacle(
        node.lineno,
        f"{script.source(node)} is used {where}, where a rank has trained its own"
        f" layers only: use pipe.predict(x), pipe.evaluate(x, t), or a snapshot",
        PAGE,
    )


def _is_returned_unread(script: Script, parts: Parts) -> bool:
    """Returns whether nobody reads what the function returns that trains."""
    name = getattr(parts.scope, "name", "")
    uses = script.uses(name, script.tree) if name else []
    uses = [use for use in uses if not _is_hidden(script, script.tree, use)]
    for use in uses:
        call = script.parent(use)
        statement = script.statement(use)
        if not isinstance(call, ast.Call) or call.func is not use:
            return False
        if isinstance(statement, ast.Assign) and statement.value is call:
            scope = script.scope(call)
            targets = [getattr(each, "id", "") for each in statement.targets]
            later = [
                other
                for target in targets
                for other in script.uses(target, scope)
                if other.lineno > statement.end_lineno
            ]
            if "" in targets or later:
                return False
        elif not isinstance(statement, ast.Expr) or statement.value is not call:
            return False
    return bool(uses)
