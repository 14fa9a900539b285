"""ChainerMN: replicas become stages of one model, which share each minibatch."""

from __future__ import annotations

import ast

from pipeline.porting.edits import Edit, removal, replacement, unwrapping
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "ChainerMN"
FINDS = (
    "``create_multi_node_optimizer``, ``create_multi_node_evaluator``,"
    " ``scatter_dataset``, ``if comm.rank == 0:``"
)
WRITES = "their first arguments; what rank 0 alone did, on every rank"
PAGE = "howto/chainermn"

#: Functions that a pipeline does without: their first argument takes their place.
_WRAPPERS = {
    "create_multi_node_optimizer": "no two ranks have the same layer. The first"
    " minibatch updates the model; ChainerMN's only sends the weights",
    "create_multi_node_evaluator": "the evaluator is one of all ranks already",
    "scatter_dataset": "all stages work on one minibatch; its size is that of the line"
    " of the iterator, on any number of ranks",
    "scatter_index": "all stages work on one minibatch",
    "create_multi_node_iterator": "the rank with the first stage reads",
    "create_synchronized_iterator": "the rank with the first stage reads",
    "create_mnbn_model": "a minibatch is on one rank at a time",
}
_MODELS = (
    "MultiNodeChainList",
    "MultiNodeNStepRNN",
    "create_multi_node_n_step_rnn",
    "send",
    "recv",
    "pseudo_connect",
    "allgather",
    "alltoall",
)


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds calls of ChainerMN, and statements of rank 0 alone."""
    findings = []
    for name, why in _WRAPPERS.items():
        for call in script.calls(name):
            findings.append(_wrapper(script, call, name, why))
    for call in script.calls(*_MODELS):
        if script.imported(call.func).startswith("chainermn"):
            text = (
                "the model is divided among ranks by hand: write its links as a chain,"
                " which the pipeline divides"
            )
            findings.append(obstacle(call.lineno, text, PAGE))
    for call in script.calls("MultiNodeBatchNormalization"):
        findings.append(_batch_normalization(script, parts, call))
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and _is_rank_zero(script, node.test):
            findings += _rank_zero(script, parts, node)
        is_size = isinstance(node, ast.Attribute) and node.attr == "size"
        if is_size and script.source(node.value) in _communicators(script):
            text = (
                "the number of ranks was the number of replicas, and is now the number"
                " of stages: is it meant here?"
            )
            findings.append(Finding(node.lineno, text, page=PAGE))
    return findings


def communicator(script: Script) -> str:
    """Returns the name of the communicator that a script makes; empty without one."""
    names = _communicators(script)
    return names[0] if names else ""


def _communicators(script: Script) -> list[str]:
    found = []
    for call in script.calls("create_communicator"):
        parent = script.parent(call)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            found.append(parent.targets[0].id)
    return found


def _wrapper(script: Script, call: ast.Call, name: str, why: str) -> Finding:
    first = call.args[0] if call.args else None
    if first is None:
        text = f"{name} is called by keywords: give its first argument by position"
        return obstacle(call.lineno, text, PAGE)
    text = f"without {name}: {why}"
    statement = script.statement(call)
    is_same = (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and script.source(statement.targets[0]) == script.source(first)
    )
    if is_same:
        return Finding(call.lineno, text, (removal(script, statement),), PAGE)
    start, end = script.span(call)
    inner = script.span(first)
    edits = (Edit(start, inner[0], ""), Edit(inner[1], end, ""))
    if first.lineno != first.end_lineno:
        edits = (replacement(script, call, f"({script.source(first)})"),)
    return Finding(call.lineno, text, edits, PAGE)


def _batch_normalization(script: Script, parts: Parts, call: ast.Call) -> Finding:
    parts.imports.add("chainer.links.BatchNormalization")
    words = [
        script.source(arg) for position, arg in enumerate(call.args) if position != 1
    ]
    words += [
        f"{keyword.arg}={script.source(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg not in ("comm", "communication_backend")
    ]
    edit = replacement(script, call, f"BatchNormalization({', '.join(words)})")
    text = "a microbatch is on one rank at a time, and so are its statistics"
    return Finding(call.lineno, text, (edit,), PAGE)


def _is_rank_zero(script: Script, test: ast.expr) -> bool:
    source = script.source(test).replace(" ", "")
    names = _communicators(script)
    return any(source in (f"{n}.rank==0", f"not{n}.rank") for n in names)


def _rank_zero(script: Script, parts: Parts, node: ast.If) -> list[Finding]:
    """Returns the edits by which every rank does what rank 0 did alone."""
    is_other = script.source(node).startswith("elif")
    if node.orelse and not is_other:
        if all(_is_placeholder(script, each) for each in node.orelse):
            text = "every rank loads the data: the list of layers is made by a sample"
            edits = tuple(unwrapping(script, node.body, node))
            return [Finding(node.lineno, text, edits, PAGE)]
        is_other = True
    has_part = any(_has_part(script, parts, each) for each in node.body)
    if is_other and (node.orelse or has_part):
        text = "ranks do different things here: let all do the same"
        return [obstacle(node.lineno, text, PAGE)]
    if has_part:
        text = "all trainers have the same extensions; rank 0 alone prints and writes"
        edits = tuple(unwrapping(script, node.body, node))
        return [Finding(node.lineno, text, edits, "howto/trainer")]
    return []


def _is_placeholder(script: Script, statement: ast.stmt) -> bool:
    """Returns whether a statement gives other ranks no data."""
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(
        (isinstance(each, ast.Constant) and each.value is None)
        or (
            isinstance(each, ast.Call)
            and script.is_chainers(each.func, "create_empty_dataset")
        )
        for each in values
    )


def _has_part(script: Script, parts: Parts, statement: ast.stmt) -> bool:
    """Returns whether a statement is one that all ranks take part in."""
    if script.methods("extend", statement) or script.uses(parts.model, statement):
        return True
    return bool(script.calls("load_npz", "save_npz", within=statement))
