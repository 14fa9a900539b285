"""Snapshots, and files that are loaded and saved: those of all ranks together."""

from __future__ import annotations

import ast

from pipeline.porting.edits import removal, replacement
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument, is_name

NOUN = "snapshot"
FINDS = "``extensions.snapshot()``, ``snapshot_object()``, ``load_npz``, ``save_npz``"
WRITES = "``snapshot(resume=)``, ``load_snapshot``, ``save_snapshot``, ``export_npz``"
PAGE = "howto/resume"

_KEPT = ("n_retains", "condition")
_LOADS = ("load_npz", "load_hdf5")
_SAVES = ("save_npz", "save_hdf5")


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds snapshots of trainers, and files of models."""
    findings = []
    for call in script.calls("snapshot"):
        findings.append(_snapshot(script, parts, call))
    for call in script.calls("snapshot_object"):
        findings.append(_snapshot_object(script, call))
    for call in script.calls("create_multi_node_checkpointer"):
        text = (
            "a checkpointer of ChainerMN: write trainer.extend(snapshot(resume='auto'))"
            " in its place, and no maybe_load"
        )
        findings.append(obstacle(call.lineno, text, PAGE))
    for call in script.calls(*_LOADS, within=parts.scope):
        findings += _load(script, parts, call)
    for call in script.calls(*_SAVES, within=parts.scope):
        findings.append(_save(script, parts, call))
    return findings


def _snapshot(script: Script, parts: Parts, call: ast.Call) -> Finding:
    if (target := argument(call, "target")) is not None:
        text = f"a snapshot of {script.source(target)}: a pipeline saves the whole run"
        return obstacle(call.lineno, text, PAGE)
    words = []
    filename = argument(call, "filename", 1)
    if filename is not None:
        words.append(f"filename={script.source(filename)}")
    for name in _KEPT:
        if (given := argument(call, name)) is not None:
            words.append(f"{name}={script.source(given)}")
    resume = argument(call, "autoload")
    if resume is not None:
        source = script.source(resume)
        is_constant = isinstance(resume, ast.Constant)
        text = "'auto'" if is_constant else f"'auto' if {source} else None"
        if not is_constant or resume.value:
            words.append(f"resume={text}")
    name = _imported(script, parts, "snapshot")
    edit = replacement(script, call, f"{name}({', '.join(words)})")
    text = "Chainer's snapshot would hold the layers of one rank; this one holds all"
    return Finding(call.lineno, text, (edit,), PAGE)


def _snapshot_object(script: Script, call: ast.Call) -> Finding:
    statement = script.statement(call)
    is_extended = (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and statement.value.args[:1] == [call]
    )
    if not is_extended:
        text = "snapshot_object in another expression than trainer.extend(...)"
        return obstacle(call.lineno, text, PAGE)
    return Finding(
        call.lineno,
        "no rank has the whole model: make its file from a snapshot, by divisible"
        " export SNAPSHOT --to npz",
        (removal(script, statement),),
        PAGE,
    )


def _load(script: Script, parts: Parts, call: ast.Call) -> list[Finding]:
    target = argument(call, "obj", 1)
    if target is None:
        return []
    path = argument(call, "file", 0) or argument(call, "filename", 0)
    trainers = {
        node.targets[0].id
        for node in ast.walk(parts.scope)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.targets[0], ast.Name)
        and script.is_chainers(node.value.func, "Trainer")
    }
    if isinstance(target, ast.Name) and target.id in trainers:
        name = _imported(script, parts, "load_snapshot")
        trainer = script.source(target)
        source = (
            f"{name}({script.source(path)}, {parts.pipe}, {parts.optimizer},"
            f" state={{'trainer': {trainer}}})"
        )
        text = (
            "a snapshot of all ranks is loaded; divisible import makes one of a file of"
            " the old script"
        )
        return [Finding(call.lineno, text, (replacement(script, call, source),), PAGE)]
    if not parts.is_after(call):
        return []
    if is_name(target, parts.optimizer):
        text = (
            f"a file of {parts.optimizer} is loaded when a rank has its own stage only:"
            f" load it before the updater is made, or load a snapshot"
        )
        return [obstacle(call.lineno, text, PAGE)]
    return []


def _save(script: Script, parts: Parts, call: ast.Call) -> Finding:
    target = argument(call, "obj", 1)
    path = argument(call, "file", 0) or argument(call, "filename", 0)
    statement = script.statement(call)
    is_own = isinstance(statement, ast.Expr) and statement.value is call
    known = (parts.model, parts.optimizer, parts.chain, *parts.children)
    name = script.source(target) if target is not None else ""
    if not is_own or name not in known or not parts.is_after(call):
        if name in known and parts.is_after(call):
            text = f"{name} is saved within another expression: save it by itself"
            return obstacle(call.lineno, text, PAGE)
        return Finding(call.lineno, f"{name} is saved on every rank, as it is")
    source, before = script.source(path), script.indentation(statement)
    save = _imported(script, parts, "save_snapshot")
    folder = f"str({source}) + '.snapshot'"
    if name == parts.optimizer:
        text = "the state of the optimizer is in a snapshot of all ranks"
        lines = f"{save}({folder}, {parts.pipe}, {parts.optimizer})"
        return Finding(call.lineno, text, (replacement(script, call, lines),), PAGE)
    names = f"{parts.layers}.chain_names"
    path = parts.root if name == parts.chain else parts.children.get(name, "")
    if path != parts.root and path:
        text = f"{name} is a part of {parts.model}: save that instead"
        return obstacle(call.lineno, text, PAGE)
    if path != parts.root:
        names += f".within({parts.root!r})"
    export = _imported(script, parts, "export_npz")
    lines = (
        f"{save}({folder}, {parts.pipe}, {parts.optimizer})\n"
        f"{before}if {parts.comm}.rank == 0:\n"
        f"{before}    {export}({folder}, {source}, names={names})"
    )
    text = (
        "each rank has trained its own layers: they are saved together, and then"
        " written to the file of the chain"
    )
    return Finding(call.lineno, text, (replacement(script, call, lines),), PAGE)


def _imported(script: Script, parts: Parts, name: str) -> str:
    """Returns the name of an import of a function of this project."""
    # The script may call an object of its own by this name.
    own = script.unused(name) if _is_variable(script, name) else name
    suffix = "" if own == name else f" as {own}"
    parts.imports.add(f"pipeline.{name}{suffix}")
    return own


def _is_variable(script: Script, name: str) -> bool:
    return any(
        isinstance(node, (ast.Name, ast.arg, ast.FunctionDef, ast.alias))
        and name
        in (
            getattr(node, "id", None),
            getattr(node, "arg", None),
            getattr(node, "name", None),
            getattr(node, "asname", None),
        )
        for node in ast.walk(script.tree)
    )
