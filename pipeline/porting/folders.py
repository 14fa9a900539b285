"""Folders: all ranks make them, and one of them is first."""

from __future__ import annotations

import ast

from pipeline.porting.edits import replacement
from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script

NOUN = "folders"
FINDS = "``os.makedirs(...)``, ``os.mkdir(...)``"
WRITES = "``os.makedirs(..., exist_ok=True)``"
PAGE = "howto/trainer"


def find(script: Script, parts: Parts) -> list[Finding]:
    """Finds calls that make a folder, and fail where it is there already."""
    findings = []
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call) or len(node.args) != 1:
            continue
        name = script.imported(node.func)
        is_one = name in ("os.makedirs", "os.mkdir") and not node.keywords
        if is_one and isinstance(node.func, ast.Attribute):
            module = script.source(node.func.value)
            text = f"{module}.makedirs({script.source(node.args[0])}, exist_ok=True)"
            edit = replacement(script, node, text)
            says = "all ranks make this folder, and one of them is first"
            findings.append(Finding(node.lineno, says, (edit,), PAGE))
    return findings
