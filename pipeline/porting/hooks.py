"""Hooks of optimizers, which see one stage unless they treat each parameter alone."""

from __future__ import annotations

import ast

from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, argument

NOUN = "hooks"
FINDS = "``optimizer.add_hook(...)``"
WRITES = "nothing: ``pipe.setup`` keeps the hooks"
PAGE = "explanation/numerics"

#: Hooks of Chainer that treat each parameter for itself.
_EACH = ("WeightDecay", "Lasso", "GradientHardClipping", "GradientLARS")
_WHOLE = ("GradientClipping", "GradientNoise")


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds hooks."""
    findings = []
    for call in script.methods("add_hook", parts.scope):
        hook = argument(call, "hook", 0)
        func = hook.func if isinstance(hook, ast.Call) else None
        if func is not None and script.is_chainers(func, *_EACH):
            text = "the hook stays: it treats each parameter for itself"
        elif func is not None and script.is_chainers(func, *_WHOLE):
            text = "the hook stays, and treats the whole model, over all ranks"
        else:
            text = (
                "the hook stays: it sees the parameters of one rank's stage, which is"
                " wrong if it needs all parameters at once"
            )
        findings.append(Finding(call.lineno, text, page=PAGE))
    return findings
