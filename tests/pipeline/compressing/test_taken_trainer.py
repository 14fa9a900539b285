"""Runs of a script whose trainer something else takes."""

import gc
import weakref

from chainer.training import Trainer

from pipeline.compressing.taken_trainer import run_until_over


class Taker:
    """Takes the trainers of three runs, and records which earlier ones are alive."""

    def __init__(self):
        self.is_over, self.seen, self.alive = False, [], []

    def take(self, trainer, train):
        self.alive.append([each() is not None for each in self.seen])
        self.seen.append(weakref.ref(trainer))
        self.is_over = len(self.seen) == 3


def script():
    trainer = Trainer.__new__(Trainer)
    # As a trainer and its extensions refer to each other.
    trainer.own = trainer
    trainer.run()
    raise AssertionError("behind the trainer")


def test_what_a_run_has_made_is_freed_before_the_next():
    taker, plain = Taker(), Trainer.run
    gc.disable()
    try:
        run_until_over(taker, script, "script.py")
    finally:
        gc.enable()
    assert taker.alive == [[], [False], [False, False]]
    assert Trainer.run is plain
