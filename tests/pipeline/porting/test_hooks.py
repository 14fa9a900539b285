"""Hooks stay, with what they see."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import training_script


@pytest.mark.parametrize(
    "hook, words",
    [
        ("chainer.optimizer_hooks.WeightDecay(0.1)", "each parameter for itself"),
        ("chainer.optimizer.GradientClipping(1)", "the whole model"),
        ("own", "wrong if it needs all parameters"),
    ],
)
def test_hooks_are_told_apart(hook, words):
    line = f"optimizer.add_hook({hook})"
    ported = port(
        training_script(optimizer="SGD()").replace("trainer =", f"{line}\ntrainer =")
    )
    assert line in ported.text
    assert [words in each.text for each in ported.findings if "hook stays" in each.text]
    assert any(words in each.text for each in ported.findings)
