"""The page of the paper: its formulas show, and its minutes are those of ``--list``."""

import re
import sys
from xml.etree import ElementTree

import pytest

from benchmarks.paper_tables import cli
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "explanation" / "paper.rst").read_text()
PAGES = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.rst"))
FORMULAS = re.findall(r":math:`([^`]+)`|\.\. math:: (.*)", PAGES)
ROW = re.compile(r"- ``(python -m benchmarks\.paper_tables.*)``\n     - (\d+)\n")
COMMANDS = dict(ROW.findall(PAGE))


@pytest.mark.parametrize("formula", sorted({a or b for a, b in FORMULAS}))
def test_formulas_become_mathml(formula):
    # It comes with Sphinx, in the extra "docs".
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    found = ElementTree.fromstring(latex2mathml.tex2mathml(formula))
    assert found.tag == "{http://www.w3.org/1998/Math/MathML}math"
    # A command that it did not know would be there as text.
    assert "\\" not in "".join(found.itertext())


def test_the_page_has_the_three_equations():
    assert len(re.findall(r"\.\. math:: ", PAGE)) == 3
    assert len(COMMANDS) == 11


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if not c.endswith(("--write", "--publish"))]
)
def test_the_minutes_are_what_the_list_says(command, tmp_path, monkeypatch, capsys):
    # Nothing is measured yet in an empty folder.
    argv = [*command.split()[2:], "--list", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    cli.main()
    assert f" about {COMMANDS[command]} minutes" in capsys.readouterr().out


def test_the_list_of_benchmarks_has_the_same_minutes():
    lines = (ROOT / "benchmarks" / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if "`python -m benchmarks.paper_tables`" in line)
    parts = dict(re.findall(r"`(--[^`]+)` (\d+)", line))
    assert len(parts) == 8
    for options, minutes in parts.items():
        assert COMMANDS[f"python -m benchmarks.paper_tables {options}"] == minutes
    assert f"about {COMMANDS['python -m benchmarks.paper_tables']} minutes" in line
