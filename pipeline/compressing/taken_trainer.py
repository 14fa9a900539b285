"""Runs of a script whose trainer something else takes.

::

    script                       session
    trainer = Trainer(...)
    trainer.extend(...)
    trainer.run()  ------------> take(trainer, train)      train() is the script's run()
                                 the script ends here

The script stays as it is. Each run has its own model, data, optimizer and schedule of
the learning rate.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, Callable, Protocol

from chainer.training import Trainer


class Taker(Protocol):
    """An object that takes the trainers of a script."""

    #: Whether no more runs of the script are needed.
    is_over: bool

    def take(self, trainer: Trainer, train: Callable[[], None]) -> None:
        """Works with a trainer; ``train`` runs it."""


class ScriptOver(SystemExit):
    """The end of a script behind its trainer, in good order."""

    def __init__(self) -> None:
        super().__init__(0)


def run_until_over(taker: Taker, run: Callable[[], Any], script: str) -> None:
    """Runs a script again and again, until no more runs are needed.

    Args:
        taker: Takes the first trainer of each run.
        run: Runs the script.
        script: Name of the script, for errors.

    Raises:
        SystemExit: If the script runs no trainer.
    """
    while not taker.is_over:
        is_taken = False
        with _taken(taker):
            try:
                run()
            except ScriptOver:
                is_taken = True
        if not is_taken:
            raise SystemExit(
                f"{script} runs no chainer.training.Trainer: train by one, with an"
                f" evaluator that reports the metric of --budget. Work behind"
                f' if __name__ == "__main__" is run'
            )
        # Arrays of this run are not needed beside those of the next one. The error
        # behind the trainer, which is gone here, had the script's variables.
        gc.collect()


@contextlib.contextmanager
def _taken(taker: Taker) -> Iterator[None]:
    """Opens a block in which trainers are taken instead of being run."""
    plain = Trainer.run

    def run(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        taker.take(trainer, lambda: plain(trainer, *args, **kwargs))
        raise ScriptOver

    Trainer.run = run
    try:
        yield
    finally:
        Trainer.run = plain
