"""Minibatches in a loop: statements that compute one loss, and may go backward."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument, is_name, walk_scope
from pipeline.porting.statements import names_in, names_stored


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
        is_default: Whether this function is the default one of a pipeline.
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
    is_default: bool = False
    accuracy: str = ""
    accfun: str = ""
    others: list[ast.stmt] = field(default_factory=list)
    is_training: bool = False
    is_update: bool = False


def minibatches(script: Script, parts: Parts) -> list[Minibatch]:
    """Returns the minibatches behind the place where the pipeline is made."""
    statements = [
        node
        for node in walk_scope(parts.scope)
        if isinstance(node, ast.stmt) and parts.is_after(node)
    ]
    is_loss = parts.classifier or any(
        _updated(parts, each) or _goes_backward(script, parts, each)
        for each in statements
    )
    found = (
        _updated(parts, each) or _computed(script, parts, each, is_loss)
        for each in statements
    )
    return [each for each in found if each is not None]


def _goes_backward(script: Script, parts: Parts, statement: ast.stmt) -> bool:
    """Returns whether the model's own result goes backward behind a statement."""
    name, call = _assigned_call(statement)
    if call is None or not is_name(call.func, parts.model) or len(call.args) < 2:
        return False
    _, after = _around(script, statement)
    return any(_is_backward(s, name) for s in _until_stored(after, name))


def _updated(parts: Parts, statement: ast.stmt) -> Minibatch | None:
    """Returns the minibatch of ``optimizer.update(model, x, t)``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_update = (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "update"
        and is_name(call.func.value, parts.optimizer)
        and len(call.args) > 2
        and not call.keywords
        and is_name(call.args[0], parts.model)
    )
    if not is_update:
        return None
    *inputs, target = call.args[1:]
    return Minibatch(statement, inputs, [target], is_training=True, is_update=True)


def _computed(
    script: Script, parts: Parts, statement: ast.stmt, is_loss: bool
) -> Minibatch | None:
    """Returns the minibatch whose loss a statement computes.

    Args:
        script: The script.
        parts: Its parts.
        statement: The statement.
        is_loss: Whether the model computes a loss, and not an output.
    """
    name, call = _assigned_call(statement)
    if call is None or call.keywords:
        return None
    before, after = _around(script, statement)
    same = _until_stored(after, name)
    backward = [s for s in same if _is_backward(s, name)]
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
    arguments = [script.source(output), script.source(target)]
    if isinstance(output, ast.Name):
        made = [s for s in before if _stores(s, output.id)][-1:]
        if not made or not _is_output(script, parts, made[0], output.id):
            return None
        after = _until_stored(after, output.id)
        if _uses_elsewhere(script, [*before, *after], output.id, arguments):
            return None
        inputs, others = _assigned_call(made[0])[1].args, made
        before = before[before.index(made[0]) + 1 :]
        # The step calls the model where the loss was computed.
        if any(names_stored(before) & names_in(each) for each in inputs):
            return None
    elif _is_plain_call(output) and _is_chain(script, parts, output.func):
        inputs, others = output.args, []
        # Another call behind the update has other weights.
        ends = (n for n, s in enumerate(after) if parts.optimizer in names_in(s))
        after = after[: next(ends, len(after))]
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
        is_default=script.is_chainers(call.func, "softmax_cross_entropy"),
        others=[*others, *backward],
        is_training=bool(backward),
    )
    is_found = _add_accuracy(script, each, before, after, arguments)
    return each if is_found else None


#: Ends of the names of functions of Chainer that are losses.
_LOSSES = ("_entropy", "_error", "_loss", "hinge", "_nll", "_likelihood")


def _add_accuracy(
    script: Script,
    each: Minibatch,
    before: list[ast.stmt],
    after: list[ast.stmt],
    arguments: list[str],
) -> bool:
    """Finds the accuracy of the same output and target as the loss.

    Args:
        script: The script.
        each: The minibatch, changed.
        before: Statements before the loss that have this output.
        after: Statements behind the loss that have it.
        arguments: Source of the output and of the target.

    Returns:
        Whether the step may compute it: between it and the loss, no statement uses it,
        or changes the target.
    """
    for place, statement in enumerate([*before, *after]):
        if not _is_accuracy(script, statement, arguments):
            continue
        each.accuracy, call = _assigned_call(statement)
        each.accfun = script.source(call.func)
        each.others.append(statement)
        behind = place - len(before)
        between = before[place + 1 :] if behind < 0 else after[:behind]
        if not names_stored(between).isdisjoint(names_in(call)):
            return False
        if any(each.accuracy in names_in(other) for other in between):
            return False
    return True


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
    is_plain = call is not None and own == name and not call.keywords
    return is_plain and _is_chain(script, parts, call.func)


def _is_plain_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and not node.keywords


def _is_chain(script: Script, parts: Parts, func: ast.expr) -> bool:
    source = script.source(func)
    is_child = parts.children.get(source) == parts.root != ""
    return is_child or source in (parts.chain, parts.model)


def _is_backward(statement: ast.stmt, name: str) -> bool:
    """Returns whether a statement is the backward of a loss, without a loss scale."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "backward"
        and is_name(call.func.value, name)
        and argument(call, "loss_scale", 2) is None
    )


def _is_accuracy(script: Script, statement: ast.stmt, arguments: list[str]) -> bool:
    """Returns whether a statement computes the accuracy of an output and a target."""
    _, call = _assigned_call(statement)
    return (
        call is not None
        and script.is_chainers(call.func, "accuracy")
        and not call.keywords
        and [script.source(arg) for arg in call.args] == arguments
    )


def _uses_elsewhere(
    script: Script, statements: list[ast.stmt], name: str, arguments: list[str]
) -> bool:
    """Returns whether an output is used for more than its loss and accuracy."""
    for statement in statements:
        if _stores(statement, name) or _is_accuracy(script, statement, arguments):
            continue
        if script.uses(name, statement):
            return True
    return False


def _around(
    script: Script, statement: ast.stmt
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Returns the statements of the same block before and after a statement."""
    block = script.block(statement)
    place = block.index(statement)
    return block[:place], block[place + 1 :]


def _until_stored(statements: list[ast.stmt], name: str) -> list[ast.stmt]:
    """Returns the first statements, as far as a variable has the same value."""
    ends = (n for n, each in enumerate(statements) if _stores(each, name))
    return statements[: next(ends, len(statements))]


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(
        is_name(node, name) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )
