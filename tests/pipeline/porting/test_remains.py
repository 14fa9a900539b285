"""Other uses of the model, where a rank has only its own stage."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import added, obstacles, removed, training_script


def test_outputs_are_those_of_the_whole_model():
    lines = added(training_script(end="y = model.predictor(x).array"))
    assert "y = as_variable(pipe.predict(x)).array" in lines
    assert "from chainer import as_variable" in lines


def test_a_predictor_with_a_name_of_its_own_is_the_model():
    lines = added(training_script(before="net = MLP()", end="print(net(x).array)"))
    assert "print(as_variable(pipe.predict(x)).array)" in lines
    ((_, text, _),) = obstacles(
        training_script(before="net = MLP()", end="net.save('folder')")
    )
    assert text.startswith("net.save is used behind the updater")


def test_attributes_of_no_layer_stay():
    end = "print(model.xp.zeros(3), type(model.predictor), model.__class__.__name__)"
    text = port(training_script(end=end.replace("type(model.predictor), ", ""))).text
    assert "model.__class__.__name__)" in text
    assert port(training_script(end=end)).text is None


def test_statistics_are_of_the_stage_and_the_graph_is_left_out():
    graph = "trainer.extend(extensions.dump_graph('main/loss'))"
    after = f"trainer.extend(extensions.ParameterStatistics(model))\n{graph}"
    source = training_script(after=after)
    assert "trainer.extend(extensions.ParameterStatistics(optimizer.target))" in added(
        source
    )
    assert graph in removed(source)


def test_the_model_of_another_function_is_another_one():
    end = "def f(model):\n    return model(1)"
    assert port(training_script(end=end)).text


@pytest.mark.parametrize(
    "end",
    ["y = model.predictor.l1(x)", "def f():\n    return model.predictor", "g(model)"],
)
def test_other_uses_are_refused(end):
    ((_, text, page),) = obstacles(training_script(end=end))
    assert "is used behind the updater" in text
    assert page == "howto/take_a_chain_apart"


def test_a_function_before_the_pipeline_may_be_called_behind_it():
    before = "def f(x):\n    return model.predictor(x)\ng = lambda: model(1)"
    ((line, text, _),) = obstacles(training_script(before=before))
    assert line == 12 and "a function that may be called behind the updater" in text
    lines = added(training_script(before=before.partition("\ng")[0]))
    assert "return as_variable(pipe.predict(x))" in lines


@pytest.mark.parametrize(
    "end, is_read",
    [
        ("train()", False),
        ("def load(a):\n    train, test = a\n    return train\ntrain()", False),
        ("if __name__ == '__main__':\n    model = train()", False),
        ("model = train()\nprint(model.count_params())", True),
        ("print(train())", True),
        ("run(train)", True),
        ("", True),
    ],
)
def test_a_model_that_is_returned_must_not_be_read(end, is_read):
    lines = training_script().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("model = "))
    body = "".join(f"    {line}\n" for line in lines[first:] if line)
    head = "\n".join(lines[:first])
    source = f"{head}\ndef train():\n{body}    return model\n\n{end}\n"
    assert (port(source).text is None) == is_read
