"""The tests that the page about snapshots' promises names are there."""

import re

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "explanation" / "promises.rst").read_text()
FOLDERS = (
    *("tests/pipeline/snapshots", "tests/mpi/pipeline/snapshots"),
    *("tests/pipeline/copies", "tests/mpi/pipeline/copies"),
)


def test_the_tests_of_promises_are_there():
    named = re.findall(r"``(test_\w+\.py)::(\w+)``", PAGE)
    assert len(named) > 10
    for file, function in named:
        paths = [ROOT / folder / file for folder in FOLDERS]
        texts = [path.read_text() for path in paths if path.exists()]
        assert any(f"def {function}(" in text for text in texts), (file, function)
