"""Chains that compute their own loss: the output is divided, the rest is a loss.

::

    def forward(self, x, t):                    def output(self, x):
        h = F.relu(self.l1(x))                      h = F.relu(self.l1(x))
        y = self.l2(h)                              y = self.l2(h)
        loss = F.softmax_cross_entropy(y, t)        return y
        chainer.report({'loss': loss}, self)
        return loss                             def loss_of_net(y, t):
                                                    loss = F.softmax_cross_entropy(y, t)
                                                    return loss
"""

from __future__ import annotations

import ast
import textwrap

from pipeline.porting.edits import Edit
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, is_name

NOUN = "loss"
FINDS = "``forward(self, x, t)`` of a chain that returns its loss"
WRITES = "a method for the output, a function for the loss, ``lossfun=``"
PAGE = "howto/other_losses"


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds the loss of a model that is no ``Classifier``."""
    if parts.classifier or parts.chain:
        return []
    assigned = script.assigned(parts.model, parts.scope)
    where = assigned[-1].lineno if assigned else parts.setup.lineno
    own = _class(script, assigned[-1].value) if assigned else None
    if own is None:
        text = (
            f"the class of {parts.model} is not in this script, so its loss is not"
            f" seen: give its output to from_chain(..., forward=), and its loss to"
            f" Pipeline as lossfun="
        )
        return [obstacle(where, text, PAGE)]
    forward = _forward(own)
    if forward is None:
        text = f"{own.name} has neither forward nor __call__ with x and t"
        return [obstacle(own.lineno, text, PAGE)]
    return _split(script, parts, own, forward)


def _class(script: Script, value: ast.expr) -> ast.ClassDef | None:
    func = value.func if isinstance(value, ast.Call) else None
    for node in ast.walk(script.tree):
        is_class = isinstance(node, ast.ClassDef) and isinstance(func, ast.Name)
        if is_class and node.name == func.id:
            return node
    return None


def _forward(own: ast.ClassDef) -> ast.FunctionDef | None:
    for node in own.body:
        is_method = isinstance(node, ast.FunctionDef)
        if is_method and node.name in ("forward", "__call__"):
            arguments = node.args
            plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
            if plain and len(arguments.args) >= 3:
                return node
    return None


def _split(
    script: Script, parts: Parts, own: ast.ClassDef, forward: ast.FunctionDef
) -> list[Finding]:
    self, *inputs, target = [arg.arg for arg in forward.args.args]
    body = [each for each in forward.body if not _is_text(each)]
    last = next((n for n, each in enumerate(body) if _reads(each, target)), len(body))
    first, rest = body[:last], [each for each in body[last:] if not _reports(each)]
    fault = ""
    if not rest or not isinstance(rest[-1], ast.Return) or rest[-1].value is None:
        fault = "it does not end with return"
    kept = _attributes_stored(rest, self)
    for each in rest:
        if _needs(script, each, self, kept):
            fault = f"line {each.lineno} needs {self} and {target}"
    if any(isinstance(n, ast.Return) for each in first for n in ast.walk(each)):
        fault = f"it returns before it has read {target}"
    if _stores(first, target):
        fault = f"it changes {target}"
    if fault:
        text = (
            f"{own.name}.{forward.name} computes output and loss at once, and {fault}:"
            f" write the output as a method, and the loss as a function of it and"
            f" {target}"
        )
        return [obstacle(forward.lineno, text, PAGE)]
    made = {*inputs, *_names_stored(first)}
    outputs = [name for name in _ordered(rest) if name in made]
    if not first or not outputs:
        text = f"{own.name}.{forward.name} has no output before it reads {target}"
        return [obstacle(forward.lineno, text, PAGE)]
    return _functions(script, parts, own, forward, first, rest, outputs)


def _functions(
    script: Script,
    parts: Parts,
    own: ast.ClassDef,
    forward: ast.FunctionDef,
    first: list[ast.stmt],
    rest: list[ast.stmt],
    outputs: list[str],
) -> list[Finding]:
    _, *inputs, target = [arg.arg for arg in forward.args.args]
    method, loss = script.unused("output"), script.unused(f"loss_of_{own.name.lower()}")
    accuracy = _accuracy(script, forward, rest, outputs, target)
    kept = [each for each in rest if not _assigns_only(script, each, accuracy[1])]
    before = script.indentation(forward)
    self = forward.args.args[0].arg
    given = ", ".join([self, *inputs])
    text = (
        f"\n{before}def {method}({given}):\n"
        + _lines(script, first, before + "    ")
        + f"{before}    return {', '.join(outputs)}\n"
    )
    _, end = script.lines(forward.lineno, forward.end_lineno)
    outer = script.indentation(own)
    local = f"{self}."
    function = f"\n\n{outer}def {loss}({', '.join([*outputs, target])}):\n" + _lines(
        script, kept, outer + "    "
    ).replace(local, "")
    _, close = script.lines(own.lineno, own.end_lineno)
    if close == end:
        edits = (Edit(end, end, text + function),)
    else:
        edits = (Edit(end, end, text), Edit(close, close, function))
    parts.chain = parts.model
    parts.conversion.append(f"forward={parts.model}.{method}")
    parts.arguments += [f"lossfun={loss}", f"accfun={accuracy[0]}"]
    says = (
        f"{own.name}.{forward.name} is the output and the loss: the ranks divide the"
        f" one, and the last rank computes the other, which must be a mean over samples"
    )
    known = ("loss",) if accuracy[0] == "None" else ("loss", "accuracy")
    left = [name for name in _reported(script, forward) if name not in known]
    if left:
        names = ", ".join(left)
        says += f". {names} is no longer reported: compute it from pipe.predict(x)"
    return [Finding(forward.lineno, says, edits, PAGE)]


def _reported(script: Script, forward: ast.FunctionDef) -> list[str]:
    """Returns the names under which a chain reports values."""
    given = [c.args[0] for c in script.calls("report", within=forward) if c.args]
    keys = [key for each in given if isinstance(each, ast.Dict) for key in each.keys]
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def _accuracy(
    script: Script,
    forward: ast.FunctionDef,
    rest: list[ast.stmt],
    outputs: list[str],
    target: str,
) -> tuple[str, str]:
    """Returns the function of an accuracy that the chain reports, and its variable."""
    reported, name = None, ""
    for call in script.calls("report", within=forward):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.Dict):
            for key, value in zip(given.keys, given.values):
                if getattr(key, "value", None) == "accuracy":
                    reported = value
    self = forward.args.args[0].arg
    if reported is None and "accuracy" in _attributes_stored(rest, self):
        reported = ast.Name("accuracy")
        name = f"{self}.accuracy"
    elif isinstance(reported, (ast.Name, ast.Attribute)):
        name = script.source(reported)
    if name:
        for each in rest:
            if _assigns_only(script, each, name):
                reported = each.value
    if not isinstance(reported, ast.Call) or reported.keywords:
        return "None", ""
    arguments = [script.source(arg) for arg in reported.args]
    if arguments != [*outputs, target]:
        return "None", ""
    return script.source(reported.func), name


def _lines(script: Script, statements: list[ast.stmt], before: str) -> str:
    """Returns the lines of statements, with another indentation."""
    text = ""
    for each in statements:
        start, end = script.lines(each.lineno, each.end_lineno)
        lines = textwrap.dedent(script.between(start, end))
        text += textwrap.indent(lines, before)
    return text if text.endswith("\n") else f"{text}\n"


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _reads(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name)
        and each.id == name
        and isinstance(each.ctx, ast.Load)
        for each in ast.walk(node)
    )


def _reports(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name == "report"


def _attributes_stored(statements: list[ast.stmt], self: str) -> set[str]:
    """Returns the attributes of the chain that statements set."""
    return {
        target.attr
        for each in statements
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Attribute) and is_name(target.value, self)
    }


def _needs(script: Script, statement: ast.stmt, self: str, kept: set[str]) -> bool:
    """Returns whether a statement needs more of the chain than attributes set here."""
    for use in script.uses(self, statement):
        parent = script.parent(use)
        if not isinstance(parent, ast.Attribute) or parent.attr not in kept:
            return True
    return False


def _assigns_only(script: Script, statement: ast.stmt, name: str) -> bool:
    """Returns whether a statement assigns a variable or an attribute, and no other."""
    return (
        bool(name)
        and isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and script.source(statement.targets[0]) == name
    )


def _stores(statements: list[ast.stmt], name: str) -> bool:
    return name in _names_stored(statements)


def _names_stored(statements: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for each in statements
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _ordered(statements: list[ast.stmt]) -> list[str]:
    """Returns the variables that statements read before they store them, in order."""
    found: dict[str, None] = {}
    stored: set[str] = set()
    for each in statements:
        for node in ast.walk(each):
            is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            if is_read and node.id not in stored:
                found.setdefault(node.id)
        stored |= _names_stored([each])
    return list(found)
