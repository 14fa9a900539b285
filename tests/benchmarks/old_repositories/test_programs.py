"""The table of programs."""

import pytest

from benchmarks.old_repositories.programs import PROGRAMS
from benchmarks.old_repositories.trial import DRIVERS


def test_no_program_is_there_twice():
    keys = [(each.repository, each.folder, each.command) for each in PROGRAMS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.repository)
def test_a_program_is_complete(program):
    assert program.repository.count("/") == 1
    assert len(program.commit) >= 7 and int(program.commit, 16) >= 0
    assert program.chainer[0] in "1234567" and program.kind
    if program.is_driver:
        assert (DRIVERS / program.arguments[0]).exists()


def test_there_are_as_many_kinds_as_promised():
    assert len({each.repository for each in PROGRAMS}) >= 30
    assert len({each.kind for each in PROGRAMS if not each.beyond}) >= 12
