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
from typing import NamedTuple

from pipeline.porting.chain_classes import (
    ChainClass,
    children,
    class_of,
    is_global,
    is_used,
    links,
    plain_attributes,
)
from pipeline.porting.edits import Edit, removal, replacement, with_pass
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, is_name
from pipeline.porting.statements import (
    assigns_only,
    attributes_stored,
    constants,
    is_text,
    lines_of,
    makes_number,
    names_in,
    names_read,
    names_stored,
    needs,
    outer_names,
    reads,
    reports,
    stores,
    surely_stored,
)
from pipeline.porting.values import values_of

NOUN = "loss"
FINDS = "``forward(self, x, t)`` of a chain that returns its loss"
WRITES = "a method for the output, a function for the loss, ``lossfun=``"
PAGE = "howto/other_losses"


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds the loss of a model that is no ``Classifier``."""
    if parts.classifier or parts.chain:
        return []
    values = values_of(script, parts.model, parts.scope).found
    where = values[-1].lineno if values else parts.setup.lineno
    found = [class_of(script, parts.neighbours, each) for each in values]
    if not found or None in found:
        text = (
            f"the class of {parts.model} is not in this script or beside it, so its"
            f" loss is not seen: give its output to from_chain(..., forward=), and its"
            f" loss to Pipeline as lossfun="
        )
        return [obstacle(where, text, PAGE)]
    own = found[-1]
    if any(each.node is not own.node for each in found):
        text = f"{parts.model} is of one of several classes: leave one in the script"
        return [obstacle(where, text, PAGE)]
    where = where if own.module else own.node.lineno
    forward = _forward(own)
    if forward is None:
        text = f"{own.node.name} has neither forward nor __call__ with x and t"
        return [obstacle(where, text, PAGE)]
    where = where if own.module else forward.lineno
    try:
        split = _split(own, forward)
        parts.children = children(own, values[-1])
        return [_functions(script, parts, split, where)]
    except _SplitError as error:
        return [obstacle(where, str(error), PAGE)]


class _SplitError(Exception):
    """A loss cannot be divided from the output."""


class _Split(NamedTuple):
    """A method in two parts.

    Attributes:
        own: The class.
        forward: The method.
        first: Statements of the output.
        rest: Statements of the loss.
        outputs: Variables that the first ones make, and the others read.
        kept: Attributes of the chain that the others set.
        needs_self: Whether they read others.
    """

    own: ChainClass
    forward: ast.FunctionDef
    first: list[ast.stmt]
    rest: list[ast.stmt]
    outputs: list[str]
    kept: set[str]
    needs_self: bool

    @property
    def arguments(self) -> list[str]:
        """Names of the arguments: self, inputs, target."""
        return [arg.arg for arg in self.forward.args.args]

    @property
    def place(self) -> str:
        """Words for the method of a module."""
        own = self.own
        return f"{own.node.name}.{self.forward.name} of {own.module}.py"


def _forward(own: ChainClass) -> ast.FunctionDef | None:
    """Returns the method that a call of the chain with x and t runs."""
    # A link's own __call__ replaces the one of Chainer, which calls forward.
    for method in (own.method("__call__"), own.method("forward")):
        if method is not None:
            arguments = method.args
            plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs)
            if plain and len(arguments.args) >= 3:
                return method
    return None


def _refuse_flags(own: ChainClass, forward: ast.FunctionDef) -> None:
    """Refuses arguments that are no arrays: those with a default other than ``None``.

    Raises:
        _SplitError: If there is one.
    """
    defaults = forward.args.defaults
    for arg, default in zip(forward.args.args[::-1], defaults[::-1]):
        if isinstance(default, ast.Constant) and default.value is not None:
            raise _SplitError(
                f"{own.node.name}.{forward.name} takes {arg.arg}="
                f"{own.script.source(default)}, which is no array: let it read"
                f" chainer.config.train or an attribute"
            )


def _split(own: ChainClass, forward: ast.FunctionDef) -> _Split:
    _refuse_flags(own, forward)
    self, *inputs, target = [arg.arg for arg in forward.args.args]
    script = own.script
    body = [each for each in forward.body if not is_text(each)]
    last = next((n for n, each in enumerate(body) if reads(each, target)), len(body))
    begun = constants(body[:last], [self, *inputs, target])
    first = [each for each in body[:last] if each not in begun]
    rest = [*begun, *(each for each in body[last:] if not reports(each))]
    fault = ""
    if not rest or not _ends(rest[-1]):
        fault = "it does not end with return"
    kept = attributes_stored(rest, self)
    known = {*kept, *plain_attributes(own)}
    for each in rest:
        if needs(script, each, self, known):
            fault = f"line {each.lineno} needs {self} and {target}"
    if any(isinstance(n, ast.Return) for each in first for n in ast.walk(each)):
        fault = f"it returns before it has read {target}"
    if stores(first, target):
        fault = f"it changes {target}"
    made = {*inputs, *names_stored(first)}
    outputs = [name for name in names_read(rest) if name in made]
    unsure = [name for name in outputs if name not in {*inputs, *surely_stored(first)}]
    if unsure and not fault:
        fault = f"some paths do not make {unsure[0]}"
    for each in first:
        if makes_number(each) and not names_stored([each]).isdisjoint(outputs):
            fault = fault or f"line {each.lineno} makes no array"
    if fault:
        raise _SplitError(
            f"{own.node.name}.{forward.name} computes output and loss at once, and"
            f" {fault}: write the output as a method, and the loss as a function of it"
            f" and {target}"
        )
    if not first or not outputs:
        raise _SplitError(
            f"{own.node.name}.{forward.name} has no output before it reads {target}"
        )
    needs_self = any(needs(script, each, self, kept) for each in rest)
    return _Split(own, forward, first, rest, outputs, kept, needs_self)


def _functions(script: Script, parts: Parts, split: _Split, where: int) -> Finding:
    own, forward = split.own, split.forward
    name = own.node.name
    accuracy = _accuracy(
        own.script, forward, split.rest, split.outputs, split.arguments
    )
    if own.module and accuracy[0] != "None":
        _import_name(script, parts, split, accuracy[0].partition(".")[0])
    edits = _output(script, parts, split)
    loss = script.unused(f"loss_of_{name.lower()}")
    edits += _loss(script, parts, split, loss, accuracy[1])
    given = [*split.outputs, split.arguments[-1]]
    if split.needs_self:
        names = ", ".join(given)
        loss = f"lambda {names}: {loss}({parts.model}, {names})"
    parts.arguments += [f"lossfun={loss}", f"accfun={accuracy[0]}"]
    says = (
        f"{name}.{forward.name} is the output and the loss: the ranks divide the one,"
        f" and the last rank computes the other, which must be a mean over samples"
    )
    known = ("loss",) if accuracy[0] == "None" else ("loss", "accuracy")
    left = [name for name in _reported(own.script, forward) if name not in known]
    if left:
        names = ", ".join(left)
        says += f". {names} is no longer reported: compute it from pipe.predict(x)"
    return Finding(where, says, tuple(edits), PAGE)


def _output(script: Script, parts: Parts, split: _Split) -> list[Edit]:
    """Gives the chain and its forward to the parts; returns edits that write it."""
    own, (self, *inputs, _) = split.own, split.arguments
    parts.chain = parts.model
    inner = _inner(split)
    if inner and own.method(inner):
        parts.conversion.append(f"forward={parts.model}.{inner}")
        return []
    if inner and inner in links(own):
        parts.chain, parts.root = f"{parts.model}.{inner}", f"/{inner}"
        return []
    result = f"return {', '.join(split.outputs)}\n"
    if own.module:
        name = script.unused(f"output_of_{own.node.name.lower()}")
        _import_names(script, parts, split, split.first)
        lines = lines_of(own.script, split.first, "    ")
        head = f"def {name}({', '.join([self, *inputs])}):\n"
        parts.functions.append(f"{head}{lines}    {result}")
        given = ", ".join(inputs)
        call = f"lambda {given}: {name}({parts.model}, {given})"
        parts.conversion.append(f"forward={call}")
        return []
    method = script.unused("output")
    before = script.indentation(split.forward)
    lines = lines_of(script, split.first, f"{before}    ")
    text = f"\n{before}def {method}({', '.join([self, *inputs])}):\n{lines}"
    parts.conversion.append(f"forward={parts.model}.{method}")
    _, end = script.lines(split.forward.lineno, split.forward.end_lineno)
    return [Edit(end, end, f"{text}{before}    {result}")]


def _loss(
    script: Script, parts: Parts, split: _Split, name: str, accuracy: str
) -> list[Edit]:
    """Returns edits that write the function of the loss, if they are not imported."""
    own, (self, *_, target) = split.own, split.arguments
    kept = [each for each in split.rest if not assigns_only(own.script, each, accuracy)]
    given = ", ".join([self] * split.needs_self + [*split.outputs, target])
    outer = "" if own.module else script.indentation(own.node)
    lines = lines_of(own.script, kept, f"{outer}    ", _local(split))
    text = f"def {name}({given}):\n{lines}"
    if own.module:
        _import_names(script, parts, split, split.rest)
        parts.functions.append(text)
        return []
    _, close = script.lines(own.node.lineno, own.node.end_lineno)
    return [Edit(close, close, f"\n\n{outer}{text}")]


def _import_names(
    script: Script, parts: Parts, split: _Split, statements: list[ast.stmt]
) -> None:
    """Imports the names of the module that statements read.

    Raises:
        _SplitError: If one means something else in the script.
    """
    for name in outer_names(statements, [*split.arguments, *split.outputs]):
        _import_name(script, parts, split, name)
    for each in statements:
        for node in ast.walk(each):
            hidden = isinstance(node, ast.Attribute) and node.attr.startswith("__")
            if is_name(node, "super") or (hidden and not node.attr.endswith("__")):
                raise _SplitError(
                    f"line {node.lineno} of {split.place} works in its class only"
                )


def _import_name(script: Script, parts: Parts, split: _Split, name: str) -> None:
    own = split.own
    imported = script.imported(ast.Name(name))
    if not is_global(own.script, name):
        raise _SplitError(
            f"{split.place} reads {name}, which that module does not define"
        )
    if not is_used(script, name):
        parts.imports.add(f"{own.module}.{name}")
    elif not imported or imported != own.script.imported(ast.Name(name)):
        raise _SplitError(
            f"{split.place} reads {name}, which is another one in this script"
        )


def _inner(split: _Split) -> str:
    """Returns the attribute that the output is a call of: ``y = self.net(x)``."""
    self, *inputs, _ = split.arguments
    each = split.first[0]
    call = each.value if isinstance(each, ast.Assign) else None
    is_one = (
        len(split.first) == 1
        and isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and is_name(call.func.value, self)
        and not call.keywords
        and [getattr(arg, "id", "") for arg in call.args] == inputs
    )
    targets = [split.own.script.source(t) for t in each.targets] if is_one else []
    return call.func.attr if is_one and targets == [", ".join(split.outputs)] else ""


def _local(split: _Split) -> list[Edit]:
    """Returns the edits by which the loss reports nothing and sets no attributes."""
    script, edits = split.own.script, []
    known = set(split.arguments).union(*map(names_in, split.rest))
    for statement in split.rest:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt) and reports(node):
                edits.append(removal(script, node))
            is_own = isinstance(node, ast.Attribute) and node.attr in split.kept
            if is_own and is_name(node.value, split.arguments[0]):
                # A variable of this name may have another value.
                local = node.attr
                while local in known:
                    local += "_"
                edits.append(replacement(script, node, local))
    return with_pass(script, edits) if edits else []


def _ends(statement: ast.stmt) -> bool:
    """Returns whether a statement returns a value on each path."""
    if isinstance(statement, ast.If):
        blocks = statement.body, statement.orelse
        return all(block and _ends(block[-1]) for block in blocks)
    return isinstance(statement, ast.Return) and statement.value is not None


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
    arguments: list[str],
) -> tuple[str, str]:
    """Returns the function of an accuracy that the chain reports, and its variable."""
    reported, name = None, ""
    for call in script.calls("report", within=forward):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.Dict):
            for key, value in zip(given.keys, given.values):
                if getattr(key, "value", None) == "accuracy":
                    reported = value
    self, target = arguments[0], arguments[-1]
    if reported is None and "accuracy" in attributes_stored(rest, self):
        reported = ast.Name("accuracy")
        name = f"{self}.accuracy"
    elif isinstance(reported, (ast.Name, ast.Attribute)):
        name = script.source(reported)
    if name:
        for each in rest:
            if assigns_only(script, each, name):
                reported = each.value
    if not isinstance(reported, ast.Call) or reported.keywords:
        return "None", ""
    given = [script.source(arg) for arg in reported.args]
    func = script.source(reported.func)
    if given != [*outputs, target] or func.startswith(f"{self}."):
        return "None", ""
    return func, name
