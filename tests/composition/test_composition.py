"""Everything with everything: drawn cases train as stock Chainer, or are refused."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings

from tests.composition.cases import parse
from tests.composition.comparison import differences
from tests.composition.drawing import cases, draw
from tests.composition.driver import run_cases, run_one
from tests.composition.faults import FAULTS
from tests.composition.features import features
from tests.composition.judging import FAULT, RIGHT, Verdict
from tests.composition.rare import rare_cases
from tests.composition.refusals import REFUSALS
from tests.composition.scripts import script
from tests.composition.serial import Serial
from tests.composition.shrinking import candidates, shrink
from tests.composition.tally import LEAST, Tally, refused_together

#: Cases within "make test". "make test-all" has those of "make test-composition", too.
SHARE = 15
#: Cases of "make test-composition".
N = int(os.environ.get("N", 1000))
SEED = int(os.environ.get("SEED", 1))
#: Cases within which a planted fault is to be found.
MOST_PLANTED = 500

#: A case whose numbers exceed those of float16 in the last minibatch.
DIVERGES = (
    "Case(seed=800780, model=Model(blocks=('residual', 'residual', 'residual',"
    " 'dictionary', 'split', 'scaled', 'linear', 'tuples', 'tuples', 'scaled'),"
    " dtype='float16'), way=Way(cuts=(0, 15)), update=Update(loss_scale=64.0),"
    " life=Life(sizes=(6, 6, 6, 6)))"
)


def faults_among(drawn):
    """Returns texts about the cases that fail, each with its line."""
    found = []
    for case, verdict in run_cases(drawn):
        if verdict.kind == FAULT:
            found.append(f"python -m tests.composition {str(case)!r}\n{verdict.words}")
    return found


def test_a_share_of_drawn_cases():
    found = faults_among(map(draw, range(SHARE)))
    assert not found, "\n\n".join(found)


@settings(max_examples=20)
@given(cases())
def test_a_line_has_the_whole_case(case):
    assert parse(str(case)) == case
    assert features(case)
    compile(script(case), "script.py", "exec")
    for smaller in list(candidates(case))[:8]:
        assert parse(str(smaller)) == smaller
        features(smaller)


def test_the_table_of_refusals_names_each_reason_once():
    rows = refused_together()
    reasons = [reason for *_, reason in rows]
    assert len(reasons) == len(set(reasons)) == len({r.reason for r in REFUSALS})
    pairs = [{one, other} for one, others, _ in rows for other in others]
    assert len(pairs) == len(REFUSALS)
    assert all(set(each.features) in pairs for each in REFUSALS)


def test_rare_pairs_are_chosen_first():
    before, verdict = Tally(), Verdict(RIGHT)

    def lacking(drawn):
        after = Tally()
        after.merge(before)
        for case in drawn:
            after.add(case, verdict)
        return sum(max(0, LEAST - count.right) for count in after.counts.values())

    for case in map(draw, range(200)):
        before.add(case, verdict)
    # Known pairs only, so that no case brings others to the sum.
    drawn = [
        seed
        for seed in range(200, 600)
        if {*itertools.combinations(features(draw(seed)), 2)} <= before.counts.keys()
    ]
    chosen = rare_cases(before, 10, drawn)
    assert len({case.seed for case in chosen}) == 10
    assert lacking(chosen) < lacking(map(draw, drawn[:10])) < lacking([])
    for _ in range(LEAST):
        before.add(chosen[0], verdict)
    assert rare_cases(before, 1, [chosen[0].seed]) == []


def test_numbers_behind_infinity_are_not_compared():
    case = parse(DIVERGES)
    found, expected = Serial(case).live(), Serial(case).live()
    assert (expected.diverges_at, len(expected.entries)) == (6, 8)
    for entry in found.entries[6:]:
        entry.values.update(dict.fromkeys(entry.values, np.nan))
    found.state = dict.fromkeys(found.state, np.nan)
    assert not differences(case, found, lambda changed_by: expected)
    found.entries[4].values["loss"] = np.nan
    (difference,) = differences(case, found, lambda changed_by: expected)
    assert difference.what == "step loss of call 4"


def test_a_case_is_shrunk_to_what_fails():
    case = next(c for c in map(draw, range(1000)) if "dropout" in c.model.blocks[2:])
    small = shrink(case, lambda c: "dropout" in c.model.blocks, most=500)
    assert small.model.blocks == ("dropout",)
    assert small.way.n_ranks == len(small.life.sizes) == 1
    assert not (small.life.events or small.way.options or small.update.hooks)


TIED = (
    "Case(model=Model(blocks=('linear', 'tanh', 'linear'), ties=((0, 2, False),)),"
    " way=Way(n_ranks=2, stage_ranks=(0, 1), cuts=(0, 2, 5), n_microbatches=2),"
    " life=Life(sizes=(6, 6)))"
)


def test_a_planted_fault_is_found():
    case = parse(TIED)
    assert run_one(case).kind == RIGHT
    verdict = run_one(case, "tied copy")
    assert verdict.kind == FAULT
    assert "gradients /1/W of call 1 differs" in verdict.words


@pytest.mark.matrix
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(fault):
    drawn = map(draw, range(SEED, SEED + MOST_PLANTED))
    outcomes = run_cases(drawn, fault)
    assert any(verdict.kind == FAULT for _, verdict in outcomes)


@pytest.mark.matrix
def test_many_drawn_cases():
    found = faults_among(map(draw, range(SEED, SEED + N)))
    assert not found, "\n\n".join(found)
