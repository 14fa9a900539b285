"""Loops without an updater: a minibatch's forward and backward become one call.

::

    y = model(x)                                result = pipe.step(x, t)
    loss = F.softmax_cross_entropy(y, t)   -->  loss = result['loss']
    model.cleargrads()
    loss.backward()
    optimizer.update()                          optimizer.update()
"""

from __future__ import annotations

import ast

from pipeline.porting.edits import Edit, removal, replacement
from pipeline.porting.examples import example_of
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.minibatches import Minibatch, minibatches
from pipeline.porting.parts import Parts, PartsError, find_setup, place_among
from pipeline.porting.script import Script, is_name

NOUN = "loop"
FINDS = "``optimizer.update(model, x, t)``; ``loss.backward()``, ``optimizer.update()``"
WRITES = "``pipe.step(x, t)``, ``optimizer.update()``, ``pipe.evaluate(x, t)``"
PAGE = "tutorial"

_RANDOM = ("numpy.random.", "random.")
_CLEARS = ("cleargrads", "zerograds", "zero_grads")


def find_loop(script: Script) -> Parts | None:
    """Finds the parts of a script with a loop of its own.

    Returns:
        Parts: The parts; ``None`` if there is no such loop.

    Raises:
        PartsError: If a part is missing.
    """
    for call in script.methods("update"):
        owner = call.func.value
        if not isinstance(owner, ast.Name):
            continue
        scope = script.scope(call)
        if script.class_of(call) is not None:
            continue
        try:
            setup, model = find_setup(script, scope, owner.id, call)
        except PartsError:
            continue
        return Parts(
            scope,
            place_among(script, scope, [call], [call, setup]),
            model,
            setup,
            owner.id,
            [],
            "",
        )
    return None


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds minibatches of training and of evaluation in a loop."""
    if parts.updaters:
        return []
    found = minibatches(script, parts)
    trained = [each for each in found if each.is_training]
    if not trained:
        text = (
            f"no forward and backward of one minibatch was found before"
            f" {parts.optimizer}.update(): write y = {parts.model}(x), the loss of y"
            f" and t, and loss.backward() in one block"
        )
        return [obstacle(parts.place.lineno, text, PAGE)]
    first = trained[0]
    faults = _given(script, parts, found)
    if any(each.lossfun != first.lossfun for each in found):
        text = "several losses: make one Pipeline for each, over the same layers"
        faults.append(obstacle(first.statement.lineno, text, "howto/other_losses"))
    faults += [
        _added_up(each) for each in trained if not _is_updated(script, parts, each)
    ]
    findings = [*faults]
    for each in found:
        findings.append(_step(script, parts, each))
    findings += _values(script, parts, found)
    return findings


def _draws(script: Script, parts: Parts, first: Minibatch) -> bool:
    """Returns whether random numbers are drawn before the first minibatch.

    Links without sizes draw their weights in it, so the pipeline has to be made there.
    """
    return any(
        isinstance(node, ast.Call)
        and node.lineno < first.statement.lineno
        and script.imported(node.func).startswith(_RANDOM)
        for node in ast.walk(parts.place)
    )


def _may_be_late(script: Script, parts: Parts, found: list[Minibatch]) -> bool:
    """Returns whether the first minibatch of a loop can make the pipeline."""
    first = min(found, key=lambda each: each.statement.lineno)
    if not first.is_training or first.statement is parts.place:
        return False
    known = [first.statement, *first.others]
    return all(
        use.lineno > first.statement.end_lineno
        or script.statement(use) in known
        or _clears(script.statement(use))
        for use in script.uses(parts.model, parts.scope)
        if parts.is_after(use)
    )


def _is_updated(script: Script, parts: Parts, each: Minibatch) -> bool:
    """Returns whether an update follows a minibatch before the next backward."""
    if each.is_update:
        return True
    block, is_backward = script.block(each.statement), False
    for statement in block[block.index(each.statement) + 1 :]:
        call = statement.value if isinstance(statement, ast.Expr) else None
        func = call.func if isinstance(call, ast.Call) else None
        if not isinstance(func, ast.Attribute):
            continue
        if func.attr == "update" and is_name(func.value, parts.optimizer):
            return is_backward and not call.args
        if func.attr == "backward":
            if is_backward:
                return False
            is_backward = True
    return False


def _added_up(each: Minibatch) -> Finding:
    text = (
        "no update follows this minibatch in the same block, so the script adds up"
        " gradients of several. A step leaves the gradient of one: give the pipeline"
        " all of them as one minibatch"
    )
    return obstacle(each.statement.lineno, text, PAGE)


def _given(script: Script, parts: Parts, found: list[Minibatch]) -> list[Finding]:
    """Gives the pipeline its loss, and an example of the inputs."""
    first = next(each for each in found if each.is_training)
    if first.lossfun:
        parts.chain = parts.chain or parts.model
        if not first.is_default:
            parts.arguments.append(f"lossfun={first.lossfun}")
        accuracy = next((each.accfun for each in found if each.accfun), "None")
        if accuracy.rpartition(".")[2] != "accuracy":
            parts.arguments.append(f"accfun={accuracy}")
    examples = [example_of(script, parts, node) for node in first.inputs]
    is_drawn = _draws(script, parts, first)
    if (is_drawn or not all(examples)) and _may_be_late(script, parts, found):
        parts.late, parts.example = first.statement, _packed(script, first.inputs)
        return []
    if not all(examples):
        text = (
            "the arrays of a minibatch are not seen to be parts of arrays or of an"
            " iterator's data set: write from_chain(chain, x) before the loop by hand"
        )
        return [obstacle(first.statement.lineno, text, "howto/take_a_chain_apart")]
    parts.example = examples[0] if len(examples) == 1 else f"({', '.join(examples)})"
    return []


def _step(script: Script, parts: Parts, each: Minibatch) -> Finding:
    """Writes the call of the pipeline for a minibatch."""
    method = "step" if each.is_training else "evaluate"
    x = _packed(script, each.inputs)
    t = _packed(script, each.targets)
    before = script.indentation(each.statement)
    result = parts.result
    lines = [f"{result} = {parts.pipe}.{method}({x}, {t})"]
    if each.is_update:
        lines.append(f"{parts.optimizer}.update()")
    if each.loss:
        lines.append(f"{each.loss} = {result}['loss']")
    if each.accuracy:
        lines.append(f"{each.accuracy} = {result}['accuracy']")
    edits = [replacement(script, each.statement, f"\n{before}".join(lines))]
    edits += [removal(script, other) for other in each.others]
    for node in (*each.inputs, *each.targets):
        edits += _unwrapped(script, parts, node)
    if each.is_training:
        edits += _cleared(script, parts, each)
    what = "forward and backward" if each.is_training else "forward"
    text = f"the {what} of a minibatch runs on all ranks, and gives floats on each"
    return Finding(each.statement.lineno, text, tuple(edits), PAGE)


def _packed(script: Script, nodes: list[ast.expr]) -> str:
    sources = [script.source(_content(script, node)) for node in nodes]
    return sources[0] if len(sources) == 1 else f"({', '.join(sources)})"


def _content(script: Script, node: ast.expr) -> ast.expr:
    """Returns the array in ``Variable(array)``."""
    is_call = isinstance(node, ast.Call) and node.args
    if is_call and script.is_chainers(node.func, "Variable", "as_variable"):
        return node.args[0]
    return node


def _unwrapped(script: Script, parts: Parts, node: ast.expr) -> list[Edit]:
    """Returns edits that leave arrays where a variable was assigned."""
    edits = []
    if isinstance(node, ast.Name):
        for assign in script.assigned(node.id, parts.scope):
            content = _content(script, assign.value)
            if content is not assign.value:
                source = script.source(content)
                edits.append(replacement(script, assign.value, source))
    return edits


def _cleared(script: Script, parts: Parts, each: Minibatch) -> list[Edit]:
    """Returns edits that remove calls which clear gradients, in the same block."""
    edits = []
    for statement in script.block(each.statement):
        if _clears(statement):
            edits.append(removal(script, statement))
    return edits


def _clears(statement: ast.stmt) -> bool:
    """Returns whether a statement clears gradients."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return is_method and call.func.attr in _CLEARS


def _values(script: Script, parts: Parts, found: list[Minibatch]) -> list[Finding]:
    """Writes floats where the values of losses and accuracies are read."""
    names = {name for each in found for name in (each.loss, each.accuracy) if name}
    arrays = {
        node.id
        for each in found
        for node in (*each.inputs, *each.targets)
        if _unwrapped(script, parts, node)
    }
    edits: list[Edit] = []
    faults = []
    handled = [script.span(s) for each in found for s in (each.statement, *each.others)]
    for node in ast.walk(parts.scope):
        if not isinstance(node, ast.Attribute) or node.attr not in ("data", "array"):
            continue
        start, end = script.span(node)
        if any(a <= start and end <= b for a, b in handled):
            continue
        value, owner = "", node.value
        if isinstance(owner, ast.Name) and owner.id in names | arrays:
            value = owner.id
        elif (
            isinstance(owner, ast.Attribute)
            and is_name(owner.value, parts.model)
            and owner.attr in ("loss", "accuracy")
        ):
            value = f"{parts.result}['{owner.attr}']"
        if value:
            whole = node if value in arrays else _whole(script, node)
            edits.append(replacement(script, whole, value))
    for name in sorted(names):
        for use in script.uses(name, parts.scope):
            parent = script.parent(use)
            statement = script.statement(use)
            if script.source(statement) == f"{name}.to_cpu()":
                edits.append(removal(script, statement))
                continue
            is_other = isinstance(parent, ast.Attribute) and parent.attr not in (
                "data",
                "array",
                "backward",
            )
            if is_other:
                text = f"{name} is a float now: {script.source(parent)} has no meaning"
                faults.append(obstacle(use.lineno, text, PAGE))
    if not edits:
        return faults
    text = "losses and accuracies are floats"
    first = parts.place.lineno
    return [*faults, Finding(first, text, tuple(edits), PAGE)]


def _whole(script: Script, node: ast.expr) -> ast.expr:
    """Returns the expression around a value that moves it to the host."""
    parent = script.parent(node)
    if isinstance(parent, ast.Call) and script.is_chainers(parent.func, "to_cpu"):
        return _whole(script, parent)
    if isinstance(parent, ast.Attribute) and parent.attr in ("get", "item", "copy"):
        call = script.parent(parent)
        if isinstance(call, ast.Call) and not call.args:
            return call
    return node
