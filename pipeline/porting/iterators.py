"""Iterators: the rank with the first stage reads, the others follow."""

from __future__ import annotations

from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "iterators"
FINDS = "``SerialIterator`` and others, ``TransformDataset``, seeds of NumPy"
WRITES = "a seed that is the same on every rank, if the script sets none"
PAGE = "howto/take_a_chain_apart"

_PARALLEL = ("MultiprocessIterator", "MultithreadIterator")


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds iterators, and random numbers that ranks must draw alike."""
    findings = []
    for call in script.calls(*_PARALLEL):
        text = "the workers of this iterator start on every rank; the first one reads"
        findings.append(Finding(call.lineno, text, page="troubleshooting"))
    for call in script.calls("TransformDataset"):
        text = (
            "from_chain reads two samples. If the transformation draws at random, later"
            " samples and weights are other ones than in the old script"
        )
        findings.append(Finding(call.lineno, text, page=PAGE))
    if not _has_seed(script):
        first = parts.scope.body[0] if parts.scope is not script.tree else parts.place
        parts.imports.add("numpy")
        parts.seeds = True
        text = (
            "no seed: every rank draws the same weights and order of samples after"
            " numpy.random.seed(0)"
        )
        findings.append(Finding(first.lineno, text, page=PAGE))
    return findings


def _has_seed(script: Script) -> bool:
    """Returns whether a script seeds NumPy's generator."""
    return any(
        not script.imported(call.func).startswith("random.")
        for call in script.methods("seed")
    )
