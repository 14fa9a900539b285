"""A small script of our own is rewritten and run, as if it were another's."""

import argparse
import re

import pytest

from benchmarks.old_repositories.made_up import data_sets, texts
from benchmarks.old_repositories.port_table import PORTS, Port
from benchmarks.old_repositories.ports import Compared, row

SCRIPT = """
import sys
import chainer
import chainer.functions as F
import chainer.links as L
from chainer import training
from chainer.training import extensions

print(open(sys.argv[1]).read())
train, _ = chainer.datasets.get_mnist()
train_iter = chainer.iterators.SerialIterator(train, 20)
model = L.Classifier(chainer.Sequential(L.Linear(784, 5), F.relu, L.Linear(5, 10)))
optimizer = chainer.optimizers.Adam()
optimizer.setup(model)
updater = training.StandardUpdater(train_iter, optimizer)
trainer = training.Trainer(updater, (3, 'epoch'))
trainer.extend(extensions.LogReport())
trainer.run()
{end}
"""
PORT = Port(
    "a/b",
    "0",
    kind="perceptron",
    script="here/train.py",
    arguments="words.txt",
    data=(texts.lines("words.txt", ["hello"]),),
)


def test_the_table_is_complete():
    keys = [(each.repository, each.folder, each.script) for each in PORTS]
    assert len(set(keys)) == len(keys) >= 6
    for each in PORTS:
        assert each.repository.count("/") == 1 and int(each.commit, 16) >= 0
        assert each.options == each.arguments.split()


def test_agreement_in_words():
    assert str(Compared([1.0, 2.0], [1.0, 2.0])) == "2 losses equal"
    assert str(Compared([1.0, 2.0], [1.0, 2.0002])) == "2 losses 1e-04"
    assert "and 1 of the port" in str(Compared([1.0, 2.0], [1.0]))
    assert "and 1 of the port" in str(Compared([1.0], [1.0]))


@pytest.mark.matrix
def test_losses_are_compared_and_failures_named(tmp_path):
    tree = tmp_path / "trees" / "a+b" / "here"
    tree.mkdir(parents=True)
    data_sets.write(tmp_path / "sets", 40, 20)
    arguments = argparse.Namespace(
        trees=tmp_path / "trees",
        environments=tmp_path / "environments",
        data_sets=tmp_path / "sets",
        timeout=60,
        deadline=120,
        show=False,
    )
    (tree / "train.py").write_text(SCRIPT.format(end=""))
    found = row(PORT, arguments)
    agreement = re.search(r"\+\d+ -\d+ lines, 3 losses (.+)$", found)
    assert agreement, found
    assert agreement[1] == "equal" or float(agreement[1]) < 1e-4
    (tree / "train.py").write_text(SCRIPT.format(end="model.count_params()"))
    found = row(PORT, arguments)
    assert "not ported, 1 places: model.count_params is used" in found
    (tree / "train.py").write_text(SCRIPT.format(end="").replace("trainer.run", "run"))
    assert row(PORT, arguments).endswith("NameError: name 'run' is not defined")
    assert [each.name for each in tree.iterdir()] == ["train.py"]
