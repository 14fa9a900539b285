"""A line among those of a progress bar stays whole."""

from types import SimpleNamespace

import pytest
from chainer.training import Trainer, extensions

from pipeline.trainer_lines import say
from tests.support.terminal import screen


def make_trainer(has_bar):
    updater = SimpleNamespace(
        iteration=3, epoch=0, epoch_detail=0.3, connect_trainer=lambda trainer: None
    )
    updater.get_all_optimizers = dict
    trainer = Trainer(updater, (10, "iteration"))
    if has_bar:
        trainer.extend(extensions.ProgressBar(update_interval=1))
    return trainer


def test_a_bar_neither_hides_nor_cuts_a_line(capsys):
    trainer = make_trainer(True)
    bar = trainer.get_extension("ProgressBar")
    for number in (1, 2, 3):
        trainer.updater.iteration += 1
        bar(trainer)
        say(trainer, f"move {number}")
        say(trainer, f"and {number}")
    assert screen(capsys.readouterr().out)[:7] == [
        *("move 1", "and 1", "move 2", "and 2", "move 3", "and 3", "")
    ]
    # What is printed in another way is no line of its own.
    trainer.updater.iteration += 1
    bar(trainer)
    print("a line")
    assert screen(capsys.readouterr().out)[0].startswith("a lineotal [###")


def test_there_is_nothing_else_where_there_is_no_bar(capsys):
    say(make_trainer(False), "move \x1b[2J")
    assert capsys.readouterr().out == "move \\x1b[2J\n"


def test_whoever_reads_no_more_ends_the_run(monkeypatch):
    def write(text):
        raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=write, flush=lambda: None))
    with pytest.raises(BrokenPipeError):
        say(make_trainer(False), "a line")
