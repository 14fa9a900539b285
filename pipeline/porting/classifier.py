"""``Classifier``: its predictor is divided, and the last stage has its loss."""

from __future__ import annotations

import ast

from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument
from pipeline.porting.values import values_of

NOUN = "Classifier"
FINDS = "``L.Classifier(net, lossfun)``, its ``compute_accuracy``"
WRITES = "``from_chain(model.predictor, ...)``, ``lossfun=``, ``accfun=``"
PAGE = "howto/take_a_chain_apart"

_LABELS = (
    "the labels of the classifier are not the last array of a sample: derive a"
    " converter that puts them last"
)


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds the classifier of a script, and what its loss and accuracy are."""
    calls = _classifiers(script, parts)
    if not calls:
        return []
    parts.classifier, parts.chain = True, f"{parts.model}.predictor"
    parts.root = "/predictor"
    findings = []
    for call in calls:
        predictor = argument(call, "predictor", 0)
        if isinstance(predictor, ast.Name) and predictor.id != parts.model:
            parts.children[predictor.id] = parts.root
        label = argument(call, "label_key", 3)
        if label is not None and script.source(label) != "-1":
            findings.append(obstacle(call.lineno, _LABELS, "howto/trainer"))
    changed = {
        target.attr: node.value
        for node in ast.walk(parts.scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and script.source(target.value) == parts.model
    }
    if "lossfun" in changed or any(argument(c, "lossfun", 1) for c in calls):
        parts.arguments.append(f"lossfun={parts.model}.lossfun")
    wanted = changed.get("compute_accuracy")
    if isinstance(wanted, ast.Constant) and not wanted.value:
        parts.arguments.append("accfun=None")
    elif wanted is not None and not isinstance(wanted, ast.Constant):
        text = f"{parts.model}.accfun if {parts.model}.compute_accuracy else None"
        parts.arguments.append(f"accfun={text}")
    elif "accfun" in changed or any(argument(c, "accfun", 2) for c in calls):
        parts.arguments.append(f"accfun={parts.model}.accfun")
    text = (
        f"the layers of {parts.chain} are divided among the ranks; the last one"
        f" computes the loss and the accuracy of the Classifier"
    )
    return [*findings, Finding(calls[-1].lineno, text, page=PAGE)]


def _classifiers(script: Script, parts: Parts) -> list[ast.Call]:
    """Returns the calls whose result the model is; none if it is something else."""
    calls = []
    found = values_of(script, parts.model, parts.scope)
    parts.passed = found.passed
    for each in found.found:
        values = [each.body, each.orelse] if isinstance(each, ast.IfExp) else [each]
        for value in values:
            is_one = isinstance(value, ast.Call) and script.is_chainers(
                value.func, "Classifier"
            )
            if is_one:
                calls.append(value)
            elif calls:
                return []
    return calls
