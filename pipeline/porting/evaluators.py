"""``Evaluator``: the evaluation of the whole model, through the same pipeline."""

from __future__ import annotations

import ast

from pipeline.porting.edits import replacement
from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument

NOUN = "Evaluator"
FINDS = "``extensions.Evaluator(test_iter, model)``"
WRITES = "``PipelineEvaluator(test_iter, pipe, mean='batches')``"
PAGE = "howto/trainer"

_OWN = (
    "{} derives from Evaluator and has an evaluate of its own: derive it from"
    " PipelineEvaluator, whose evaluate goes through the pipeline"
)
_READ = (
    "{} sets {} of the model, and layers read it: let them read chainer.config.train,"
    " which an evaluator sets"
)
_UNREAD = "{} sets {} of the model, which nothing reads: it is an Evaluator"
_FUNCTION = (
    "eval_func= is another function than the model's call: a second Pipeline with this"
    " lossfun= evaluates it"
)
_HOOK = (
    "eval_hook= stays; a PipelineEvaluator itself resets states that layers declare by"
    " carry_state"
)


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds evaluators."""
    findings, plain = [], set()
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(
            script.is_chainers(base, "Evaluator") for base in node.bases
        ):
            flags = _flags(script, node)
            read = [each for each in flags or () if _is_read(script, parts, each)]
            if flags is None:
                findings.append(obstacle(node.lineno, _OWN.format(node.name), PAGE))
            elif read:
                text = _READ.format(node.name, read[0])
                findings.append(obstacle(node.lineno, text, PAGE))
            else:
                plain.add(node.name)
                text = _UNREAD.format(node.name, " and ".join(sorted(flags)))
                findings.append(Finding(node.lineno, text, page=PAGE))
    calls = script.calls("Evaluator")
    for node in ast.walk(script.tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_call and node.func.id in plain:
            calls.append(node)
    for call in calls:
        findings += _evaluator(script, parts, call)
    return findings


def _flags(script: Script, own: ast.ClassDef) -> set[str] | None:
    """Returns the flags of the model that an evaluator sets around its evaluation.

    ::

        def evaluate(self):
            model = self.get_target('main')
            model.train = False
            result = super(Own, self).evaluate()
            model.train = True
            return result

    Returns:
        set of str: The flags; None if it does more.
    """
    methods = [each for each in own.body if isinstance(each, ast.FunctionDef)]
    if [each.name for each in methods] != ["evaluate"]:
        return None
    flags: set[str] = set()
    evaluated = False
    for statement in methods[0].body:
        value = getattr(statement, "value", None)
        source = script.source(value) if value is not None else ""
        is_super = source.startswith("super(") and source.endswith(").evaluate()")
        is_flag = isinstance(value, ast.Constant) and isinstance(statement, ast.Assign)
        if is_flag and isinstance(statement.targets[0], ast.Attribute):
            flags.add(statement.targets[0].attr)
        elif is_super:
            evaluated = True
        elif not isinstance(value, (ast.Name, ast.Constant)) and not source.startswith(
            ("self.get_target(", "self._targets[")
        ):
            return None
    return flags if evaluated else None


def _is_read(script: Script, parts: Parts, flag: str) -> bool:
    """Returns whether a link of the script, or beside it, reads a flag of its own."""
    return any(
        each.source(node) == f"self.{flag}" and isinstance(node.ctx, ast.Load)
        for each in (script, *parts.neighbours.values())
        for own in ast.walk(each.tree)
        if isinstance(own, ast.ClassDef) and _is_called(own)
        for node in ast.walk(own)
        if isinstance(node, ast.Attribute) and node.attr == flag
    )


def _is_called(own: ast.ClassDef) -> bool:
    names = {each.name for each in own.body if isinstance(each, ast.FunctionDef)}
    return not names.isdisjoint(("forward", "__call__"))


def _evaluator(script: Script, parts: Parts, call: ast.Call) -> list[Finding]:
    if argument(call, "eval_func", 5) is not None:
        return [obstacle(call.lineno, _FUNCTION, "howto/other_losses")]
    target = argument(call, "target", 1)
    if script.scope(call) is parts.scope and not _is_trained(script, parts, target):
        text = (
            f"{script.source(target or call)} is another model than the one that is"
            f" trained, and is on no rank as a whole: make a Pipeline for it as well"
        )
        return [obstacle(call.lineno, text, PAGE)]
    findings, words = [], []
    iterator = argument(call, "iterator", 0)
    if iterator is None or isinstance(iterator, (ast.Dict, ast.List)):
        text = "the evaluator has several iterators: make one evaluator for each"
        return [obstacle(call.lineno, text, PAGE)]
    for position, name in enumerate(("converter", "device", "eval_hook"), 2):
        given = argument(call, name, position)
        if given is not None:
            words.append(f"{name}={script.source(given)}")
            if name == "eval_hook":
                findings.append(Finding(call.lineno, _HOOK, page="howto/sequences"))
    words = [script.source(iterator), parts.pipe, *words, "mean='batches'"]
    parts.imports.add("pipeline.PipelineEvaluator")
    edit = replacement(script, call, f"PipelineEvaluator({', '.join(words)})")
    text = (
        "the test set goes through the pipeline; mean='batches' gives the means of"
        " Chainer's Evaluator"
    )
    return [*findings, Finding(call.lineno, text, (edit,), PAGE)]


def _is_trained(script: Script, parts: Parts, target: ast.expr | None) -> bool:
    """Returns whether an expression is the model, or a copy that shares its arrays."""
    source = "" if target is None else script.source(target)
    if isinstance(target, ast.Name) and target.id != parts.model:
        assigned = script.assigned(target.id, parts.scope)
        source = script.source(assigned[-1].value) if assigned else ""
    is_copy = source.startswith(f"{parts.model}.copy(")
    return source == parts.model or source.endswith(".target") or is_copy
