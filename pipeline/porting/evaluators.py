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
    findings = []
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(
            script.is_chainers(base, "Evaluator") for base in node.bases
        ):
            findings.append(obstacle(node.lineno, _OWN.format(node.name), PAGE))
    for call in script.calls("Evaluator"):
        findings += _evaluator(script, parts, call)
    return findings


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
