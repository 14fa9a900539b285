"""Rows are read as they were written."""

import pytest

from benchmarks.old_repositories.program import Program
from benchmarks.old_repositories.programs import PROGRAMS
from benchmarks.old_repositories.rows import Row, head, read

RUN = Program("a/b", "0", "GAN", "4", "train.py")
LONG = Program(
    "an-owner/a-name-that-is-longer-than-its-column-is", "0", "VAE", "1", "x"
)
ROWS = [
    Row(RUN, "CHAINER_COMPAT=names", "2e-03 (last bits alone 1e-03)", "0.1 0.1 1.00"),
    Row(RUN, "unchanged", "equal"),
    Row(LONG, "stopped: SyntaxError: a; b"),
    Row(RUN._replace(beyond="Python 2"), "Python 2"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_a_row_is_read_as_it_was_written(row):
    text = f"a title\n\n{row}\n\nChainer 1: 3"
    assert read(text, [row.program]) == {row.program.repository: row}
    assert read(text, [row.program._replace(kind="other")]) == {}


def test_only_programs_that_ran_have_run():
    assert [row.has_run for row in ROWS] == [True, True, False, False]


def test_a_verdict_that_the_table_has_given_since_replaces_the_row():
    old = Row(RUN, "stopped: NameError: x")
    assert read(str(old), [RUN._replace(beyond="Python 2")]) == {}
    assert read(f"{head(RUN)} Python 2", [RUN]) != {}


def test_a_repository_is_there_once():
    assert len({each.repository for each in PROGRAMS}) == len(PROGRAMS)
