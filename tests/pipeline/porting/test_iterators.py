"""Ranks draw the same numbers."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import added, obstacles, training_script


@pytest.mark.parametrize(
    "seed, is_new",
    [
        ("np.random.seed(3)", False),
        ("pass", True),
        ("if args.seed: np.random.seed(args.seed)", True),
        ("chainer.cuda.cupy.random.seed(3)", True),
    ],
)
def test_a_script_without_a_seed_gets_one(seed, is_new):
    source = training_script().replace("np.random.seed(0)", seed)
    lines = added(source)
    assert ("numpy.random.seed(0)  # alike on every rank" in lines) == is_new
    assert ("import numpy" in lines) == is_new


def test_a_seed_stands_before_those_of_the_script():
    body = training_script().replace("np.random.seed(0)", "''' Trains. '''")
    source = "def main():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    seed = "numpy.random.seed(0)  # alike on every rank"
    assert added(source).count(seed) == 1
    source = f"import chainer\n{source}\nnp.random.seed(args.seed)\nmain()\n"
    assert seed not in added(source)
    late = source.replace("np.random", "if args.seed:\n    np.random")
    text = port(late).text
    assert text.index(seed) < text.index("def main")


def test_generators_of_python_are_seeded_as_well():
    source = training_script(before="import random\nrandom.shuffle(order)")
    lines = added(source)
    assert "random.seed(0)  # alike on every rank" in lines
    assert "numpy.random.seed(0)  # alike on every rank" not in lines


@pytest.mark.parametrize(
    "seed",
    ["np.random.seed(comm.rank)", "np.random.seed()", "r = np.random.RandomState()"],
)
def test_numbers_that_differ_among_ranks_are_refused(seed):
    ((_, text, _),) = obstacles(training_script(before=seed))
    assert "must draw the same" in text
