"""The table of findings."""

import pytest

from benchmarks.common.findings import Finding, as_markdown


@pytest.mark.parametrize(
    ("is_reproduced", "word"), [(True, "yes"), (False, "no"), (None, "in part")]
)
def test_a_row_says_whether_a_finding_holds(is_reproduced, word):
    lines = as_markdown([Finding("it grows", "2", "3", is_reproduced, "a reason")])
    assert lines[2] == f"| it grows | 2 | 3 | {word} | a reason |"
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")


def test_a_table_of_several_runs_names_them():
    found = Finding("it grows", "2", "3", True, "a reason", measured_with="a GPU")
    head, _, row = as_markdown([found])
    assert "| its number | measured with | here |" in head
    assert row == "| it grows | 2 | a GPU | 3 | yes | a reason |"
