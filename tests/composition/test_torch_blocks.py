"""Modules of PyTorch among the layers of drawn cases."""

import dataclasses

import pytest

pytest.importorskip("torch")

from tests.composition.blocks import BLOCKS
from tests.composition.cases import parse
from tests.composition.drawing import draw
from tests.composition.driver import run_one
from tests.composition.judging import RIGHT
from tests.composition.scripts import script

#: A tie between both libraries, a skip, and a snapshot on other stages.
MIXED = (
    "Case(model=Model(blocks=('torch residual', 'stash a', 'linear', 'torch tanh',"
    " 'torch linear', 'pop a add', 'torch dropout'), ties=((2, 4, False),)),"
    " way=Way(n_ranks=2, schedule='zb_h1', stage_ranks=(0, 1), cuts=(0, 4, 9),"
    " n_microbatches=2), update=Update(rule='Adam', hooks=('WeightDecay',)),"
    " life=Life(sizes=(6, 5), events=(Event(before=1, name='resume', way=Way("
    "n_ranks=1, cuts=(0, 9), n_microbatches=3)),)))"
)


def plain(case):
    """Returns a case with the blocks that its modules stand for."""
    blocks = tuple(name.removeprefix("torch ") for name in case.model.blocks)
    model = dataclasses.replace(case.model, blocks=blocks)
    return dataclasses.replace(case, model=model)


def test_modules_stand_for_blocks_of_a_case(monkeypatch):
    drawn = [draw(seed) for seed in range(200)]
    found = {name for case in drawn for name in case.model.blocks}
    assert {name for name in BLOCKS if name.startswith("torch ")} <= found
    for case in drawn[:30]:
        compile(script(case), "script.py", "exec")
        assert parse(str(case)) == case
    monkeypatch.setattr("tests.composition.torch_blocks.MODULES", ())
    assert [draw(seed) for seed in range(200)] == [plain(case) for case in drawn]


def test_layers_of_both_libraries_train_as_the_serial_script():
    verdict = run_one(parse(MIXED))
    assert verdict.kind == RIGHT, verdict.words
