"""A small model of our own becomes a pipeline, as if it were another's."""

import argparse

import pytest

from benchmarks.old_repositories.models import Model
from benchmarks.old_repositories.pipelines import row

NET = """
import chainer
import chainer.functions as F
import chainer.links as L


class Net(chainer.Chain):
    def __init__(self):
        super(Net, self).__init__(a=L.Linear(None, 5), b=L.Linear(5, 3))

    def __call__(self, x):
        return self.b(F.dropout(F.relu(self.a(x))) {change})
"""
MODEL = Model("a/b", "0", "perceptron", "net", "Net()", ("f4:4,6",), target="i4<3:4")


@pytest.mark.matrix
def test_losses_are_compared_and_failures_named(tmp_path):
    tree = tmp_path / "trees" / "a+b"
    tree.mkdir(parents=True)
    arguments = argparse.Namespace(
        trees=tmp_path / "trees",
        environments=tmp_path / "environments",
        timeout=60,
        deadline=120,
        show=False,
    )
    (tree / "net.py").write_text(NET.format(change=""))
    # Dropout is off.
    assert row(MODEL, arguments).endswith("3 layers, losses equal")
    (tree / "net.py").write_text(NET.format(change="+ missing"))
    assert row(MODEL, arguments).endswith(
        "stopped: NameError: name 'missing' is not defined"
    )
