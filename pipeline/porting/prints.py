"""Prints: one rank speaks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pipeline.porting.edits import Edit, shifted
from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "prints"
FINDS = "``print(...)``"
WRITES = "``if comm.rank == 0:``"
PAGE = "howto/trainer"


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds statements that every rank would print."""
    findings, computing = [], _computing(script, parts)
    for block in _blocks(script, parts):
        for run in _runs(script, parts, block, computing):
            findings.append(_guarded(script, parts, run))
    return findings


def _blocks(script: Script, parts: Parts) -> Iterator[list[ast.stmt]]:
    """Yields the blocks in which the communicator is known and no rank is asked."""
    within = script.tree if parts.comm_is_global else parts.scope
    for node in ast.walk(within):
        if any(_asks_rank(script, above) for above in (node, *script.parents(node))):
            continue
        if any(isinstance(above, ast.ClassDef) for above in script.parents(node)):
            continue
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.ClassDef):
                yield block


def _asks_rank(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "rank" in script.source(node.test)


def _runs(
    script: Script, parts: Parts, block: Sequence[ast.stmt], computing: set[str]
) -> Iterator[list[ast.stmt]]:
    """Yields the consecutive prints of a block."""
    run: list[ast.stmt] = []
    for statement in block:
        is_known = statement.lineno > parts.comm_line
        is_one = is_known and _is_print(statement) and script.is_alone(statement)
        if is_one and not _is_collective(script, parts, statement, computing):
            run.append(statement)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _is_print(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    return is_call and call.func.id == "print"


def _computing(script: Script, parts: Parts) -> set[str]:
    """Returns functions of the script that use the model, or another one that does."""
    functions = [n for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef)]
    found: set[str] = set()
    more = {parts.model, *parts.children}
    while more:
        names, more = more, set()
        for function in functions:
            is_new = function is not parts.scope and function.name not in found
            if is_new and any(script.uses(name, function) for name in names):
                more.add(function.name)
        found |= more
    return found


def _is_collective(
    script: Script, parts: Parts, statement: ast.stmt, computing: set[str]
) -> bool:
    """Returns whether all ranks compute what a statement prints.

    All ranks also draw the same random numbers, and read the same minibatches.
    """
    if any(script.uses(name, statement) for name in parts.children):
        return True
    for use in script.uses(parts.model, statement):
        parent = script.parent(use)
        is_value = isinstance(parent, ast.Attribute)
        if not is_value or parent.attr not in ("loss", "accuracy"):
            return True
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(
        (isinstance(call.func, ast.Name) and call.func.id in {"next", *computing})
        or (isinstance(call.func, ast.Attribute) and call.func.attr == "next")
        or "random" in script.imported(call.func).split(".")
        or (
            isinstance(call.func, ast.Name)
            and _is_evaluator(script, parts, call.func.id)
        )
        for call in calls
    )


def _is_evaluator(script: Script, parts: Parts, name: str) -> bool:
    return any(
        isinstance(assign.value, ast.Call)
        and script.is_chainers(
            assign.value.func, "Evaluator", "create_multi_node_evaluator"
        )
        for assign in script.assigned(name, parts.scope)
    )


def _guarded(script: Script, parts: Parts, run: Sequence[ast.stmt]) -> Finding:
    first, last = run[0].lineno, run[-1].end_lineno
    start, _ = script.lines(first, first)
    before = script.indentation(run[0])
    edits = [Edit(start, start, f"{before}if {parts.comm}.rank == 0:\n")]
    edits += shifted(script, first, last, before, f"{before}    ")
    return Finding(first, "rank 0 prints, and not all", tuple(edits), PAGE)
