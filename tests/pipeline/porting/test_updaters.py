"""Updaters become one updater, behind a pipeline."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import added, obstacles, training_script


@pytest.mark.parametrize(
    "updater, line",
    [
        (
            "training.StandardUpdater(train_iter, optimizer)",
            "updater = PipelineUpdater(train_iter, optimizer, pipe)",
        ),
        (
            "training.updaters.StandardUpdater(train_iter, optimizer, device=args.gpu)",
            "updater = PipelineUpdater(train_iter, optimizer, pipe, device=args.gpu)",
        ),
        (
            "training.updater.StandardUpdater(train_iter, optimizer, convert, 0)",
            "updater = PipelineUpdater(train_iter, optimizer, pipe, converter=convert,"
            " device=0)",
        ),
        (
            "training.ParallelUpdater("
            "train_iter, optimizer, devices={'main': 0, 'b': 1})",
            "updater = PipelineUpdater(train_iter, optimizer, pipe)",
        ),
    ],
)
def test_an_updater_becomes_one_of_a_pipeline(updater, line):
    assert line in added(training_script(updater=updater))


def test_an_iterator_without_a_name_gets_one():
    source = training_script(
        updater="training.StandardUpdater(iterators.SerialIterator(a, 3), optimizer)"
    )
    lines = added(source)
    assert "train_iter = iterators.SerialIterator(a, 3)" in lines
    assert "updater = PipelineUpdater(train_iter, optimizer, pipe)" in lines


@pytest.mark.parametrize(
    "optimizer, line", [("SGD(0.1)", "optimizer.lr *= 2"), ("Adam()", None)]
)
def test_updates_of_several_devices_keep_their_size(optimizer, line):
    lines = added(
        training_script(
            optimizer=optimizer,
            updater="training.ParallelUpdater(\n    train_iter, optimizer,\n"
            "    devices={'main': 0, 'second': 1})",
        )
    )
    assert "model.to_device(0)" in lines
    assert (line in lines) == (line is not None)


@pytest.mark.parametrize(
    "updater, words, page",
    [
        (
            "training.StandardUpdater(train_iter, optimizer, loss_func=f)",
            "lossfun=",
            "howto/other_losses",
        ),
        (
            "training.StandardUpdater(train_iter, {'a': optimizer})",
            "the optimizer is not a single variable",
            "howto/other_losses",
        ),
        (
            "training.StandardUpdater({'main': a, 'b': b}, optimizer)",
            "several iterators",
            "howto/other_losses",
        ),
        (
            "training.updaters.MultiprocessParallelUpdater(its, optimizer, devices=d)",
            "a share of the data set",
            "howto/trainer",
        ),
        (
            "updaters.GANUpdater(train_iter, optimizer)",
            "updaters.GANUpdater is an updater of another file",
            "howto/other_losses",
        ),
    ],
)
def test_other_updaters_are_refused(updater, words, page):
    ((_, text, found),) = obstacles(training_script(updater=updater))
    assert words in text and found == page


def test_a_pipeline_is_made_before_the_branches_that_make_updaters():
    source = training_script(
        updater="None\nif args.parallel:\n    updater = training.ParallelUpdater("
        "train_iter, optimizer, devices={'main': 0})\nelse:\n    updater ="
        " training.StandardUpdater(train_iter, optimizer)"
    )
    lines = added(source)
    assert lines.count("optimizer = pipe.setup(optimizer)") == 1
    assert lines.count("updater = PipelineUpdater(train_iter, optimizer, pipe)") == 2


def test_a_name_of_the_script_is_not_taken():
    source = training_script(before="pipe = layers = None")
    assert "updater = PipelineUpdater(train_iter, optimizer, pipe_)" in added(source)


@pytest.mark.parametrize(
    "updater, second, words",
    [
        (
            "training.StandardUpdater(train_iter, optimizer)",
            "training.StandardUpdater(other_iter, optimizer)",
            "another iterator or optimizer",
        ),
        (
            "training.StandardUpdater(train_iter, optimizer)",
            "training.StandardUpdater(train_iter, optimizer=other)",
            "another iterator or optimizer",
        ),
        (
            "training.ParallelUpdater(train_iter, optimizer, devices={'main': 0,"
            " 'b': 1})",
            "training.StandardUpdater(train_iter, optimizer)",
            "adds up the gradients",
        ),
        (
            "training.StandardUpdater(train_iter, optimizer)",
            "training.ParallelUpdater(train_iter, optimizer, devices=devices)",
            "adds up the gradients",
        ),
    ],
)
def test_a_second_updater_that_trains_otherwise_is_refused(updater, second, words):
    source = training_script(
        updater=f"None\nif a:\n    updater = {updater}\nelse:\n    updater = {second}"
    )
    assert any(words in text for _, text, _ in obstacles(source))


@pytest.mark.parametrize(
    "optimizer, after, words",
    [
        ("SGD(0.1)", "optimizer.lr = 0.01", "multiply all learning rates by 2"),
        (
            "SGD(0.1)",
            "trainer.extend(extensions.LinearShift('lr', (1, 0), (0, 9)))",
            "multiply all learning rates by 2",
        ),
        ("Adam()", "optimizer.add_hook(h)", "thresholds of hooks by 2"),
    ],
)
def test_rates_that_the_script_sets_itself_are_told(optimizer, after, words):
    devices = "{'main': 0, 'b': 1}"
    updater = f"training.ParallelUpdater(train_iter, optimizer, devices={devices})"
    source = training_script(optimizer=optimizer, updater=updater, after=after)
    ported = port(source)
    assert "optimizer.lr *= 2" not in ported.text
    assert any(words in each.text for each in ported.findings)
