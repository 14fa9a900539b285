"""A model that a function is given is that of its only call."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import obstacles, training_script

MADE = "net = MLP()"


def in_function(end, model="L.Classifier(net)", before=MADE, given="model"):
    """Returns a script whose function trains the model that it is given."""
    lines = training_script().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("model = "))
    body = "".join(f"    {line}\n" for line in lines[first + 1 :] if line)
    head = "\n".join([*lines[:first], before, f"def train({given}):\n{body}"])
    return f"{head}\ndef main():\n    net2 = {model}\n    {end}\n\nmain()\n"


@pytest.mark.parametrize(
    "end, given",
    [
        ("train(net2)", "model"),
        ("train(3, net2)", "n, model"),
        ("train(model=net2, n=3)", "n, model"),
    ],
)
def test_the_model_of_the_only_call_is_found(end, given):
    text = port(in_function(end, given=given)).text
    assert "layers = from_chain(model.predictor, " in text


@pytest.mark.parametrize(
    "end, words",
    [
        ("train(net2)\n    net2.predictor.l1(x)", "net2 is used behind train()"),
        ("train(net2)\n    train(net2)", "the class of model is not in this script"),
        ("train(*nets)", "the class of model is not in this script"),
    ],
)
def test_other_models_are_refused(end, words):
    assert any(words in text for _, text, _ in obstacles(in_function(end)))


def test_a_model_without_a_variable_is_found():
    source = in_function("train(L.Classifier(net))", model="None")
    assert "layers = from_chain(model.predictor, " in port(source).text
