"""Scripts are read with their names, blocks and lines."""

import ast

import pytest

from pipeline.porting.script import Script, common_block

IMPORTS = """
import chainer
import chainer.functions as F
from chainer import training
from chainer.training.extensions import Evaluator as Ev
"""


@pytest.mark.parametrize(
    "expression, name",
    [
        ("chainer.links.Classifier", "chainer.links.Classifier"),
        ("F.relu", "chainer.functions.relu"),
        (
            "training.updaters.StandardUpdater",
            "chainer.training.updaters.StandardUpdater",
        ),
        ("Ev", "chainer.training.extensions.Evaluator"),
        ("model.predictor", ""),
        ("f(x).relu", ""),
    ],
)
def test_imported_names_are_full(expression, name):
    script = Script(IMPORTS + expression)
    assert script.imported(script.tree.body[-1].value) == name


def test_a_star_import_gives_names_of_chainer():
    script = Script("from chainer.links import *\nClassifier(net)")
    assert [call.lineno for call in script.calls("Classifier")] == [2]


def test_positions_count_bytes():
    script = Script("a = 'ä'; b = f(x)  # ü\nc = 1\n")
    call = script.tree.body[1].value
    assert script.source(call) == "f(x)"
    assert script.is_alone(script.tree.body[2]) and not script.is_alone(
        script.tree.body[1]
    )


def test_paths_end_in_the_block_that_all_share():
    text = "if a:\n    b = 1\n    if c:\n        d = 2\ne = 3\n"
    script = Script(text)
    outer, last = script.tree.body
    b, inner = outer.body
    paths = [script.path(node) for node in (b, inner.body[0])]
    assert common_block(paths, script) == 1
    assert common_block([*paths, script.path(last)], script) == 0


def test_names_that_are_taken_get_longer():
    script = Script("pipe = pipe_ = 1\ndef comm(): pass\n")
    assert [script.unused(n) for n in ("pipe", "comm", "layers")] == [
        "pipe__",
        "comm_",
        "layers",
    ]


def test_scopes_are_functions_or_the_module():
    script = Script("def f():\n    x = g()\n    def h():\n        x = 2\nx = 3\n")
    call = script.tree.body[0].body[0].value
    assert isinstance(script.scope(call), ast.FunctionDef)
    assert len(script.assigned("x", script.tree.body[0])) == 1
    assert len(script.assigned("x", script.tree)) == 1
