"""Runs of a small script of our own, as if it were another's."""

import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.old_repositories import comparing
from benchmarks.old_repositories.__main__ import Places, compared, first_way
from benchmarks.old_repositories.made_up import data_sets, texts
from benchmarks.old_repositories.program import Change, Program, Repository
from benchmarks.old_repositories.trial import Way, run

SCRIPT = """
import sys
import chainer, numpy
import chainer.functions as F, chainer.links as L
{imports}
train, _ = chainer.datasets.get_mnist()
model = L.Classifier(L.Linear(784, 10))
optimizer = chainer.optimizers.SGD().setup(model)
for batch in chainer.iterators.SerialIterator(train, 10):
    loss = model(*chainer.dataset.concat_examples(batch))
    model.cleargrads()
    loss.backward()
    optimizer.update()
    print(open(sys.argv[1]).read())
"""
AS_IT_IS = Way()
PROGRAM = Program(
    "owner/name",
    "0",
    kind="classification",
    chainer="4",
    command="train.py words.txt",
    data=(texts.lines("words.txt", ["hello"]),),
    steps=3,
    seconds=120,
)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("repositories")
    data_sets.write(root / "sets", 100, 20)
    (root / "trees" / "owner+name").mkdir(parents=True)
    return Places(root / "trees", root / "sets", root / "environments")


def write(places, imports=""):
    script = places.trees / "owner+name" / "train.py"
    script.write_text(SCRIPT.format(imports=imports))


def test_losses_are_recorded_and_compared_with_those_without_kernels(places):
    write(places)
    found = first_way(PROGRAM, places, 60)
    assert (found.words, found.run.failure) == ("unchanged", "")
    assert len(found.run.losses) == 3 and len(found.run.times) == 4
    assert "hello" in found.run.output
    agree, times = compared(PROGRAM, found, places, 0)
    assert "more than" not in agree and times == ""
    # The tree itself is as it was.
    assert [each.name for each in (places.trees / "owner+name").iterdir()] == [
        "train.py"
    ]


@pytest.mark.matrix
def test_help_is_given_in_turn_until_the_script_runs(places):
    write(places, "numpy.float(1); import cupy")
    found = first_way(PROGRAM, places, 60)
    assert found.words in ("CHAINER_COMPAT=names,cupy", "CHAINER_COMPAT=names")
    changed = PROGRAM._replace(change=Change("train.py", 5, "pass"))
    write(places, "raise ValueError('not here')")
    assert first_way(changed, places, 60).words.startswith("one changed line")


def one(places, program, way=AS_IT_IS):
    return run(program, places.trees, Path(sys.executable), places.data_sets, way)


@pytest.mark.matrix
def test_modules_of_another_tree_are_found(places):
    beside = places.trees / "owner+other"
    beside.mkdir()
    (beside / "other_module.py").write_text("")
    write(places, "import other_module")
    other = Repository("owner/other", "0")
    assert one(places, PROGRAM._replace(beside=(other,))).failure == ""
    assert "other_module" in one(places, PROGRAM).failure


@pytest.mark.matrix
def test_a_script_may_catch_the_end_of_its_run(places):
    write(places, "import os; assert os.listdir() == sorted(os.listdir('.'))")
    script = places.trees / "owner+name" / "train.py"
    body = textwrap.indent(script.read_text(), "    ")
    script.write_text(f"try:\n{body}\nexcept:\n    not_defined\n")
    done = one(places, PROGRAM)
    assert (len(done.losses), done.failure) == (3, "")


@pytest.mark.matrix
def test_seeds_from_the_system_are_the_same_in_each_run(places):
    write(places, "import os; numpy.random.seed(list(os.urandom(4)))")
    losses = [one(places, PROGRAM, Way(kernels=False)).losses for _ in range(2)]
    assert losses[0] == losses[1] and len(losses[0]) == 3


@pytest.mark.matrix
def test_failures_are_named(places):
    write(places, "raise ValueError('not here')")
    assert one(places, PROGRAM).failure == "ValueError: not here"
    write(places, "import time; time.sleep(60)")
    assert one(places, PROGRAM._replace(seconds=4)).failure == "not done in time"
    write(places, "sys.exit()")
    assert one(places, PROGRAM).failure == "ended without training"
    with pytest.raises(FileNotFoundError, match="Fetch a/b at 0"):
        one(places, PROGRAM._replace(repository="a/b"))


@pytest.mark.matrix
def test_noise_changes_losses_a_little(places):
    write(places)
    plain = one(places, PROGRAM, Way(kernels=False))
    nudged = one(places, PROGRAM, Way(kernels=False, nudge=1e-3))
    other = one(places, PROGRAM, Way(kernels=False, nudge=1e-3, draw=1))
    for each in nudged, other:
        assert 1e-9 < comparing.difference(each, plain) < 1e-1
        assert each.losses[0] != plain.losses[0]
    assert nudged.losses != other.losses


@pytest.mark.matrix
def test_a_driver_trains_a_model_of_the_tree(places):
    module = "import chainer.links as L\nclass Net(L.Linear): pass\n"
    (places.trees / "owner+name" / "net.py").write_text(module)
    driver = PROGRAM._replace(
        command="with_model.py net 'Net(3, 2)' f4:4,3 'i4<2:4' --loss"
        " softmax_cross_entropy"
    )
    try:
        done = one(places, driver)
    finally:
        (places.trees / "owner+name" / "net.py").unlink()
    assert done.failure == "" and len(done.losses) == 3
