"""Scripts that train in one process, rewritten for a pipeline."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.porting import remains
from pipeline.porting.catalogue import RULES
from pipeline.porting.chainermn_scripts import communicator
from pipeline.porting.edits import Edit, apply, with_pass
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.loops import find_loop
from pipeline.porting.parts import Parts, PartsError, find_parts, updaters_of
from pipeline.porting.script import Script
from pipeline.porting.updaters import creation


class Ported(NamedTuple):
    """A script for a pipeline.

    Attributes:
        text: Its source; ``None`` if something stands in the way.
        findings: Places of the old script, in the order of their lines.
    """

    text: str | None
    findings: list[Finding]

    @property
    def obstacles(self) -> list[Finding]:
        """Findings that stand in the way."""
        return [each for each in self.findings if each.is_obstacle]


def port(source: str, neighbours: Mapping[str, str] | None = None) -> Ported:
    """Returns a script that trains the same model on a pipeline.

    The script is read, and not run. Comments and layout of lines that stay are kept.

    Args:
        source: Source of a training script for Chainer.
        neighbours: Sources of modules beside it that it imports, by their names, such
            as ``models.net``.

    Returns:
        Ported: The new source and the findings.

    Example:
        >>> ported = port('''import chainer.links as L
        ... from chainer import training
        ... model = L.Classifier(net)
        ... optimizer.setup(model)
        ... updater = training.StandardUpdater(train_iter, optimizer)
        ... ''')
        >>> [finding.line for finding in ported.findings if finding.edits]
        [5, 5]
        >>> print(ported.text.splitlines()[-1])
        updater = PipelineUpdater(train_iter, optimizer, pipe)
    """
    try:
        script = Script(source)
        others = {name: Script(text) for name, text in (neighbours or {}).items()}
    except SyntaxError as error:
        text = f"this Python cannot parse it: {error.msg}"
        return Ported(None, [obstacle(error.lineno or 1, text, "howto/old_scripts")])
    try:
        is_loop = not updaters_of(script)
        parts = (is_loop and find_loop(script)) or find_parts(script)
    except PartsError as error:
        return Ported(None, [error.finding])
    return _ported(script, _named(script, parts, others))


def _named(script: Script, parts: Parts, others: dict[str, Script]) -> Parts:
    """Gives the new objects names that do not occur in the script."""
    own = communicator(script)
    parts.comm_is_global = not own
    parts.comm_line = max(
        (c.lineno for c in script.calls("create_communicator")), default=0
    )
    parts.comm = own or script.unused("comm")
    parts.pipe = script.unused("pipe")
    parts.layers = script.unused("layers")
    parts.result = script.unused("result")
    parts.neighbours = others
    if not own:
        parts.imports.add(
            "mpi4py.MPI.COMM_WORLD as comm"
            if parts.comm == "comm"
            else f"mpi4py.MPI.COMM_WORLD as {parts.comm}"
        )
    return parts


def _ported(script: Script, parts: Parts) -> Ported:
    findings = [each for rule in RULES for each in rule.find(script, parts)]
    if parts.chain:
        findings.insert(0, creation(script, parts))
    handled = [(e.start, e.end) for each in findings for e in each.edits]
    refused = {each.line for each in findings if each.is_obstacle}
    findings += remains.find(script, parts, handled, refused)
    edits = [edit for each in findings for edit in each.edits]
    findings.sort(key=lambda each: each.line)
    if any(each.is_obstacle for each in findings):
        return Ported(None, findings)
    edits += _imports(script, parts, _first_use(script, parts, edits))
    text = apply(script.text, with_pass(script, edits))
    if script.text.count("\r\n") == script.text.count("\n") > 0:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        ast.parse(text)
    except SyntaxError as error:
        line = text.splitlines()[(error.lineno or 1) - 1].strip()
        fault = obstacle(
            parts.place.lineno,
            f"the lines around {line!r} are too entangled to be changed one by one:"
            f" write one statement on a line",
            "howto/trainer",
        )
        return Ported(None, [*findings, fault])
    return Ported(text, findings)


def _first_use(script: Script, parts: Parts, edits: Sequence[Edit]) -> int:
    """Returns where the model, or the first change, begins, in bytes."""
    made = script.assigned(parts.model, parts.scope)
    starts = [edit.start for edit in edits] + [script.span(each)[0] for each in made]
    return min(starts, default=0)


def _imports(script: Script, parts: Parts, before: int) -> list[Edit]:
    """Returns the edit that adds imports, and seeds, below the script's imports."""
    last = 0
    for statement in script.tree.body:
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        if is_import and script.span(statement)[1] <= before:
            last = statement.end_lineno
    if not last:
        first = script.tree.body[0]
        last = first.end_lineno if isinstance(first, ast.Expr) else 0
    _, end = script.lines(max(last, 1), max(last, 1))
    end = end if last else 0
    present = _present(script)
    lines = _import_lines(each for each in parts.imports if each not in present)
    if parts.seeds:
        lines += ["", *(f"{each}  # alike on every rank" for each in parts.seeds)]
    for each in parts.functions:
        lines += ["", "", *each.splitlines()]
    text = "".join(f"{line}\n" for line in lines)
    if end and not script.between(end - 1, end).endswith("\n"):
        text = f"\n{text}"
    return [Edit(end, end, text)]


def _present(script: Script) -> set[str]:
    """Returns the names that the module imports under their own names."""
    found = set()
    for statement in script.tree.body:
        if isinstance(statement, ast.Import):
            found |= {a.name for a in statement.names if a.asname in (None, a.name)}
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            found |= {
                f"{statement.module}.{a.name}" + (f" as {a.asname}" if a.asname else "")
                for a in statement.names
            }
    return found


def _import_lines(names: Iterable[str]) -> list[str]:
    """Returns lines that import names.

    Example:
        >>> _import_lines(['pipeline.Pipeline', 'numpy', 'pipeline.PipelineUpdater'])
        ['import numpy', 'from pipeline import Pipeline, PipelineUpdater']
    """
    plain, modules = [], {}
    for name in sorted(names):
        path, _, as_name = name.partition(" as ")
        module, _, attribute = path.rpartition(".")
        if not module:
            plain.append(f"import {name}")
        else:
            suffix = f" as {as_name}" if as_name else ""
            modules.setdefault(module, []).append(attribute + suffix)
    return plain + [
        line for module in modules for line in _line(module, modules[module])
    ]


def _line(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 88:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]
