"""Updaters of a script's own: what they do to a minibatch becomes a converter.

An ``update_core`` that reads a batch, makes arrays, and updates by the model's loss
does what ``PipelineUpdater`` does. The lines between batch and loss are a converter::

    batch = self.get_iterator('main').next()
    x, t = make_arrays(batch)             -->  def convert(batch, device=None):
    loss = optimizer.target(x, t)                  x, t = make_arrays(batch)
    optimizer.target.cleargrads()                  return x, t
    loss.backward()
    optimizer.update()
"""

from __future__ import annotations

import ast
import textwrap
from typing import NamedTuple

from pipeline.porting.edits import insertion
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument

_PAGE = "howto/other_losses"
_READS = ("next", "__next__")
_PLAIN = ("cleargrads", "zerograds", "zero_grads", "backward", "update")


def own_updater(
    script: Script,
    parts: Parts,
    own: ast.ClassDef,
    converter: str | None,
) -> tuple[list[Finding], str | None]:
    """Returns findings about an updater of the script, and the source of a converter.

    Args:
        script: The script.
        parts: Its parts.
        own: Class of the updater.
        converter: Source of the converter that makes its minibatches, if it is given.
    """
    methods = {n.name: n for n in own.body if isinstance(n, ast.FunctionDef)}
    core = methods.pop("update_core", None)
    methods.pop("__init__", None)
    if core is None or methods:
        return [_refusal(own, sorted(methods) or ["no update_core"])], converter
    try:
        update = _update_of(script, core)
    except _DoesMore as error:
        return [_refusal(own, [error.what])], converter
    left = update.left
    line = Finding(
        own.lineno,
        f"{own.name} updates by the model's loss, as PipelineUpdater does",
        page="howto/trainer",
    )
    if len(left) == 1 and _converts(script, update):
        is_given = "self.converter" in script.source(left[0])
        return [line], converter if is_given else None
    if _uses_self(script, update):
        return [_refusal(own, [f"line {left[0].lineno}, which uses self"])], converter
    name = script.unused("convert")
    if any("self.converter" in script.source(each) for each in left) and not converter:
        parts.imports.add("chainer.dataset.concat_examples")
    function = _function(script, name, update, converter)
    edit = insertion(script, own, function)
    made = Finding(
        left[0].lineno if left else own.lineno,
        f"the arrays that {own.name} makes of a batch are made by a converter",
        (edit,),
        "howto/trainer",
    )
    return [line, made], name


class _DoesMore(Exception):
    """An updater does more than an update by the model's loss.

    Args:
        what: The part that is more, or its line.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Update(NamedTuple):
    """An ``update_core`` that updates by the model's loss.

    Attributes:
        batch: The variable of the batch.
        left: The statements between batch and loss.
        arrays: Sources of the arguments of the loss.
        aliases: Sources of variables that name the iterator, optimizer or model.
    """

    batch: str
    left: list[ast.stmt]
    arrays: list[str]
    aliases: dict[str, str]


def _update_of(script: Script, core: ast.FunctionDef) -> _Update:
    """Reads an ``update_core``, statement by statement.

    Raises:
        _DoesMore: If it does more, or less, than an update by the model's loss.
    """
    body = core.body[1:] if _is_text(core.body[0]) else core.body
    batch, arrays, left = None, None, []
    aliases, done = {}, set()
    for statement in body:
        if _is_plain(statement):
            name = statement.value.func.attr
            if name in done and name in ("backward", "update"):
                raise _DoesMore(f"line {statement.lineno}")
            done.add(name)
        if _is_alias(statement):
            aliases[statement.targets[0].id] = script.source(statement.value)
        elif batch is None and (name := _batch(statement)):
            batch = name
        elif arrays is None and (found := _loss(script, statement, aliases)):
            arrays = found
        elif arrays is None and batch is not None and not _is_plain(statement):
            left.append(statement)
        elif not _is_plain(statement):
            raise _DoesMore(f"line {statement.lineno}")
    if arrays and len(arrays) == 1 and not arrays[0].startswith("*"):
        raise _DoesMore("a loss of one array")
    if batch is None or arrays is None:
        raise _DoesMore("no batch" if batch is None else "no loss")
    return _Update(batch, left, arrays, aliases)


def _uses_self(script: Script, update: _Update) -> bool:
    """Returns whether statements between batch and loss need the updater."""
    return any(
        isinstance(node, ast.Name) and node.id in ("self", *update.aliases)
        for statement in update.left
        for node in ast.walk(statement)
        if not _is_known(script, script.parent(node))
    )


def _function(script: Script, name: str, update: _Update, converter: str | None) -> str:
    """Returns the source of a converter."""
    lines = ""
    for each in update.left:
        start, end = script.lines(each.lineno, each.end_lineno)
        lines += textwrap.dedent(script.between(start, end))
    if lines:
        lines = lines.replace("self.device", "device")
        lines = lines.replace("self.converter", converter or "concat_examples")
    names = [array.lstrip("*") for array in update.arrays]
    result = f"return {', '.join(names)}\n"
    body = textwrap.indent(lines + result, "    ")
    return f"def {name}({update.batch}, device=None):\n{body}\n\n"


def _refusal(own: ast.ClassDef, what: list[str]) -> Finding:
    return obstacle(
        own.lineno,
        f"{own.name} does more than an update by the model's loss"
        f" ({', '.join(what)}): derive it from PipelineUpdater, and write what it does"
        f" with a minibatch in step(x, t)",
        _PAGE,
    )


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_alias(statement: ast.stmt) -> bool:
    """Returns whether a statement only names the iterator, optimizer or model."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in ("get_iterator", "get_optimizer")
    names = ("target", "_iterators", "_optimizers", "model")
    node = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(node, ast.Attribute) and node.attr in names


def _batch(statement: ast.stmt) -> str:
    """Returns the variable that a statement assigns the next batch."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target, value = statement.targets[0], statement.value
    if not isinstance(value, ast.Call) or not isinstance(target, ast.Name):
        return ""
    func = value.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return target.id if name in _READS else ""


def _loss(
    script: Script, statement: ast.stmt, aliases: dict[str, str]
) -> list[str] | None:
    """Returns the arguments of the model's call in ``loss = model(x, t)``."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        is_update = isinstance(call.func, ast.Attribute) and call.func.attr == "update"
        model = call.args[0] if is_update and call.args else None
        if model is None or not _is_model(script, model, aliases):
            return None
        return _arrays(script, call.args[1:])
    if not isinstance(statement, ast.Assign) or not isinstance(
        statement.value, ast.Call
    ):
        return None
    call = statement.value
    if not _is_model(script, call.func, aliases) or call.keywords:
        return None
    return _arrays(script, call.args)


def _is_model(script: Script, node: ast.expr, aliases: dict[str, str]) -> bool:
    source = script.source(node)
    return aliases.get(source, source).endswith((".target", ".model"))


def _arrays(script: Script, given: list[ast.expr]) -> list[str] | None:
    """Returns the sources of arrays, or of one tuple of them all."""
    if any(isinstance(arg, ast.Starred) for arg in given) and len(given) > 1:
        return None
    return [script.source(arg) for arg in given]


def _is_plain(statement: ast.stmt) -> bool:
    """Returns whether a statement is part of every update."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _PLAIN
        # A pipeline has no loss scale unless its optimizer has one.
        and (call.func.attr != "backward" or argument(call, "loss_scale", 2) is None)
    )


def _converts(script: Script, update: _Update) -> bool:
    """Returns whether the statement that is left is ``x, t = converter(batch)``."""
    (statement,) = update.left
    if not isinstance(statement, ast.Assign) or not isinstance(
        statement.value, ast.Call
    ):
        return False
    call, (target,) = statement.value, statement.targets
    names = [script.source(e) for e in getattr(target, "elts", [target])]
    is_own = script.source(call.func) == "self.converter"
    is_chainers = script.is_chainers(call.func, "concat_examples")
    first = argument(call, "batch", 0)
    given = first is not None and script.source(first) == update.batch
    same = names == [array.lstrip("*") for array in update.arrays]
    return (is_own or is_chainers) and given and same and len(call.args) <= 2


def _is_known(script: Script, node: ast.AST | None) -> bool:
    known = ("self.device", "self.converter")
    return isinstance(node, ast.Attribute) and script.source(node) in known


def parameters(own: ast.ClassDef) -> list[str]:
    """Returns the parameters of a class of the script; none if it defines none."""
    for node in own.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [arg.arg for arg in node.args.args[1:]]
    return []
