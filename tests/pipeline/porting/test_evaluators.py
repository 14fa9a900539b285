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
