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
