"""Evaluators go through the pipeline."""

import pytest

from tests.support.ported import added, obstacles, training_script


@pytest.mark.parametrize(
    "given, found",
    [
        ("test_iter, model", "test_iter, pipe"),
        ("test_iter, model, device=d", "test_iter, pipe, device=d"),
        (
            "test_iter, model, convert, d",
            "test_iter, pipe, converter=convert, device=d",
        ),
        ("test_iter, model, eval_hook=h", "test_iter, pipe, eval_hook=h"),
        ("test_iter, updater.get_optimizer('main').target", "test_iter, pipe"),
    ],
)
def test_an_evaluator_has_the_pipeline_and_its_means(given, found):
    source = training_script(
        after=f"trainer.extend(extensions.Evaluator({given}), name='v')"
    )
    line = f"trainer.extend(PipelineEvaluator({found}, mean='batches'), name='v')"
    assert line in added(source)


@pytest.mark.parametrize(
    "before, after, words",
    [
        ("", "extensions.Evaluator(it, model, eval_func=f)", "eval_func="),
        ("mean = Mean()", "extensions.Evaluator(it, mean)", "another model"),
        ("class E(extensions.Evaluator):\n    pass", "", "E derives from Evaluator"),
    ],
)
def test_evaluations_of_another_kind_are_refused(before, after, words):
    ((_, text, _),) = obstacles(training_script(before=before, after=after))
    assert words in text


TEST_MODE = """
class Net(chainer.Chain):
    def __init__(self, train=True):
        self.train = train

    def forward(self, x):
        return {read}


class TestMode(extensions.Evaluator):
    def evaluate(self):
        model = self.get_target('main')
        model.train = False
        {call}
        model.train = True
        return found
"""
CALL = "found = super(TestMode, self).evaluate()"


def test_an_evaluator_that_sets_flags_which_nothing_reads_is_one():
    before = TEST_MODE.format(read="x", call=CALL)
    after = "trainer.extend(TestMode(test_iter, model, device=0))"
    lines = added(training_script(before=before, after=after))
    found = "PipelineEvaluator(test_iter, pipe, device=0, mean='batches')"
    assert f"trainer.extend({found})" in lines


@pytest.mark.parametrize(
    "read, call, words",
    [
        ("x if self.train else 2 * x", CALL, "and layers read it"),
        ("x", f"{CALL}; plot(found)", "an evaluate of its own"),
    ],
)
def test_an_evaluator_that_does_more_is_refused(read, call, words):
    before = TEST_MODE.format(read=read, call=call)
    after = "trainer.extend(TestMode(test_iter, model, device=0))"
    faults = obstacles(training_script(before=before, after=after))
    assert any(words in text for _, text, _ in faults), faults
