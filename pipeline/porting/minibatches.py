"""Minibatches in a loop: statements that compute one loss, and may go backward."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, is_name, walk_scope


@dataclass
class Minibatch:
    """Statements of one minibatch.

    Attributes:
        statement: Statement that computes the loss.
        inputs: Expressions of the inputs.
        targets: Expressions of the targets.
        loss: Variable of the loss; empty without one.
        lossfun: Source of the loss function of outputs and targets; empty if the model
            computes its loss.
        accuracy: Variable of the accuracy; empty without one.
        accfun: Source of its function.
        others: Further statements, which the pipeline's call replaces.
        is_training: Whether it goes backward.
        is_update: Whether the statement updates the parameters as well.
    """

    statement: ast.stmt
    inputs: list[ast.expr]
    targets: list[ast.expr]
    loss: str = ""
    lossfun: str = ""
    accuracy: str = ""
    accfun: str = ""
    others: list[ast.stmt] = field(default_factory=list)
    is_training: bool = False
    is_update: bool = False


def minibatches(script: Script, parts: Parts) -> list[Minibatch]:
    """Returns the minibatches behind the place where the pipeline is made."""
    found = []
    for node in walk_scope(parts.scope):
        if isinstance(node, ast.stmt) and parts.is_after(node):
            each = _updated(parts, node) or _computed(script, parts, node)
            if each is not None:
                found.append(each)
    return found


def _updated(parts: Parts, statement: ast.stmt) -> Minibatch | None:
    """Returns the minibatch of ``optimizer.update(model, x, t)``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_update = (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "update"
        and is_name(call.func.value, parts.optimizer)
        and len(call.args) > 2
        and is_name(call.args[0], parts.model)
    )
    if not is_update:
        return None
    *inputs, target = call.args[1:]
    return Minibatch(statement, inputs, [target], is_training=True, is_update=True)


def _computed(script: Script, parts: Parts, statement: ast.stmt) -> Minibatch | None:
    """Returns the minibatch whose loss a statement computes."""
    name, call = _assigned_call(statement)
    if call is None or call.keywords:
        return None
    block = script.block(statement)
    backward = [s for s in block if _calls(s, name, "backward")]
    is_loss = parts.classifier or bool(backward)
    if is_name(call.func, parts.model) and len(call.args) > 1 and is_loss:
        *inputs, target = call.args
        return Minibatch(
            statement,
            inputs,
            [target],
            loss=name,
            others=backward,
            is_training=bool(backward),
        )
    if len(call.args) != 2:
        return None
    output, target = call.args
    if isinstance(output, ast.Name):
        made = [s for s in block if _is_output(script, parts, s, output.id)]
        if not made or _uses_elsewhere(script, block, output.id, statement):
            return None
        inputs, others = _assigned_call(made[-1])[1].args, [made[-1]]
    elif isinstance(output, ast.Call) and _is_chain(script, parts, output.func):
        inputs, others = output.args, []
    else:
        return None
    if not backward and not script.imported(call.func).endswith(_LOSSES):
        return None
    each = Minibatch(
        statement,
        list(inputs),
        [target],
        loss=name,
        lossfun=script.source(call.func),
        others=[*others, *backward],
        is_training=bool(backward),
    )
    _add_accuracy(script, each, block, script.source(output))
    return each


#: Ends of the names of functions of Chainer that are losses.
_LOSSES = ("_entropy", "_error", "_loss", "hinge", "_nll", "_likelihood")


def _add_accuracy(
    script: Script, each: Minibatch, block: list[ast.stmt], output: str
) -> None:
    for statement in block:
        name, call = _assigned_call(statement)
        if call is None or not script.is_chainers(call.func, "accuracy"):
            continue
        if call.args and script.source(call.args[0]) == output:
            each.accuracy, each.accfun = name, script.source(call.func)
            each.others.append(statement)


def _assigned_call(statement: ast.stmt) -> tuple[str, ast.Call | None]:
    """Returns the variable and the call of ``name = call(...)``."""
    is_one = (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
    )
    return (statement.targets[0].id, statement.value) if is_one else ("", None)


def _is_output(script: Script, parts: Parts, statement: ast.stmt, name: str) -> bool:
    own, call = _assigned_call(statement)
    return call is not None and own == name and _is_chain(script, parts, call.func)


def _is_chain(script: Script, parts: Parts, func: ast.expr) -> bool:
    return script.source(func) in (parts.chain, parts.model)


def _calls(statement: ast.stmt, name: str, method: str) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == method
        and is_name(call.func.value, name)
    )


def _uses_elsewhere(
    script: Script, block: list[ast.stmt], name: str, loss: ast.stmt
) -> bool:
    """Returns whether an output is used for more than its loss and accuracy."""
    for statement in block:
        if statement is loss or _stores(statement, name):
            continue
        _, call = _assigned_call(statement)
        if call is not None and script.is_chainers(call.func, "accuracy"):
            continue
        if script.uses(name, statement):
            return True
    return False


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(
        is_name(node, name) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )
