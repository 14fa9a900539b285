"""Iterators: the rank with the first stage reads, the others follow."""

from __future__ import annotations

import ast

from pipeline.porting.findings import Finding, obstacle
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "iterators"
FINDS = "``SerialIterator`` and others, ``TransformDataset``, seeds of NumPy"
WRITES = "a seed that is the same on every rank, unless the script always sets one"
PAGE = "howto/take_a_chain_apart"

_PARALLEL = ("MultiprocessIterator", "MultithreadIterator")
# Calls after which ranks draw the same numbers, if their arguments are the same.
_SEEDS = ("numpy.random.seed", "random.seed")
_GENERATORS = (
    "numpy.random.RandomState",
    "numpy.random.default_rng",
    "random.Random",
)


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
    for call in _calls(script, *_SEEDS, *_GENERATORS):
        source = script.source(call)
        if not (call.args or call.keywords) or "rank" in source or "time" in source:
            text = (
                f"ranks draw different numbers after {source}, and must draw the same:"
                f" give a seed that all have"
            )
            findings.append(obstacle(call.lineno, text, PAGE))
    for module in _unseeded(script, parts):
        parts.imports.add(module.partition(".")[0])
        parts.seeds.append(f"{module}.seed(0)")
        text = (
            f"every rank draws the same weights and order of samples after"
            f" {module}.seed(0); a seed that the script sets later counts"
        )
        findings.append(Finding(parts.place.lineno, text, page=PAGE))
    return findings


def _unseeded(script: Script, parts: Parts) -> list[str]:
    """Returns modules with a generator that the script does not always seed."""
    found = []
    sources = [script, *parts.neighbours.values()]
    name = ast.Name("random")
    if any(_calls(each, "random") for each in sources) and script.imported(name) in (
        "random",
        "",
    ):
        found.append("random")
    found.append("numpy.random")
    return [m for m in found if not _is_seeded(script, parts, f"{m}.seed")]


def _is_seeded(script: Script, parts: Parts, name: str) -> bool:
    """Returns whether a statement seeds a generator, whatever the arguments are."""
    blocks = [script.tree.body, parts.scope.body]
    calls = _calls(script, name)
    return any(script.statement(call) in block for call in calls for block in blocks)


def _calls(script: Script, *names: str) -> list[ast.Call]:
    """Returns the calls of functions, or of all functions of a module."""
    return [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and any(
            script.imported(node.func) == name
            or script.imported(node.func).rpartition(".")[0] == name
            for name in names
        )
    ]
