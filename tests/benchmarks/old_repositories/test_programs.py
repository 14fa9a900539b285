"""The table of programs, and the models that become pipelines."""

import pytest

from benchmarks.old_repositories.drivers.with_model import made_up
from benchmarks.old_repositories.model_table import MODELS
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


@pytest.mark.parametrize("model", MODELS, ids=lambda each: each.expression)
def test_a_model_is_complete(model):
    import numpy as np

    random = np.random.RandomState(0)
    for text in (*model.inputs, model.target):
        assert made_up(text, random).dtype.kind in "fi"
    compile(model.expression, "expression", "eval")
    assert int(model.commit, 16) >= 0
