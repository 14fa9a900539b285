"""Layers whose results depend on microbatches: batch normalization and dropout."""

from __future__ import annotations

import re

from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "normalization"
FINDS = "batch normalization, ``dropout`` in the script and modules beside it"
WRITES = "``n_microbatches=1``, if there is batch normalization"
PAGE = "explanation/numerics"

# Links and functions of Chainer and ChainerMN, models of Chainer, and names like these.
_NORMALIZES = re.compile(r"batch_?(re)?norm|^ResNet|^InceptionBN$", re.IGNORECASE)


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds layers that a microbatch is not enough for."""
    findings = []
    sources = [script, *parts.neighbours.values()]
    if any(_NORMALIZES.search(name) for each in sources for name in each.identifiers):
        parts.arguments.append("n_microbatches=1")
        text = (
            "batch normalization has the statistics of a microbatch: one microbatch"
            " gives those of the old script, and with several the ranks work at once"
        )
        findings.append(Finding(parts.place.lineno, text, page=PAGE))
    if any(each.mentions("dropout") for each in sources):
        text = (
            "dropout draws other numbers than in one process, the same on any number of"
            " ranks"
        )
        findings.append(Finding(parts.place.lineno, text, page=PAGE))
    return findings
