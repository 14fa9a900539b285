"""The orders to a supervised run: who gave them, and who has to be told of their end.

::

    divisible control RUN save --> supervisor --> rank 0 --> all ranks save
                  answer <--------- answer <----- progress <------'
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from divisible.side_files import SideFiles
from pipeline.training import control_files
from pipeline.training.control_files import Order, Progress, Run, Wishes


class Orders:
    """The orders to a run, in its directory.

    Args:
        folder: The run's directory, which is locked.
        script: Script and its arguments, for the status.

    Attributes:
        stops: Whether the run was ordered to stop.
    """

    def __init__(self, folder: Path, script: str) -> None:
        self._folder, self._script = folder, script
        self._files = SideFiles("the state of the run", "Give another --control.")
        self._wishes = Wishes(0)
        # Orders without an answer, and the number of snapshots that each waits for.
        self._saves: list[tuple[Order, int]] = []
        self._stops: list[Order] = []
        self.stops = False

    @property
    def is_obeyed(self) -> bool:
        """Whether rank 0 of this start reads orders."""
        return self._progress() is not None

    def begin(self) -> None:
        """Forgets the orders to an earlier start; called before each start.

        Orders to save that came while no ranks ran are for this start.
        """
        self._saves = [(order, n) for n, (order, _) in enumerate(self._saves, 1)]
        self._wishes = Wishes(self._wishes.start + 1, saves=len(self._saves))
        with self._files.writing(self._folder):
            control_files.forget(self._folder, Progress)
            control_files.write(self._folder, self._wishes)

    def describe(self, ranks: str, state: str, restarts_left: int, last: str) -> None:
        """Writes the state of the run; see :class:`~.control_files.Run`."""
        run = Run(
            process=os.getpid(),
            host=socket.gethostname(),
            script=self._script,
            ranks=ranks,
            state=state,
            starts=self._wishes.start,
            restarts_left=restarts_left,
            last=last,
        )
        with self._files.writing(self._folder):
            control_files.write(self._folder, run)

    def taken(self) -> list[Order]:
        """Passes new orders on to rank 0; returns those to grow.

        Snapshots that are there by now are answered.
        """
        grows = []
        for order in control_files.take(self._folder):
            if order.word == "save":
                self._wish(saves=self._wishes.saves + 1)
                self._saves.append((order, self._wishes.saves))
            elif order.word == "stop":
                self.stops = True
                self._stops.append(order)
                self.stop_ranks()
            elif order.word == "grow":
                grows.append(order)
            else:
                self.answer(order, f"the run knows no order {order.word!r}")
        if self._saves and (progress := self._progress()) is not None:
            for order, number in self._saves:
                if number <= progress.saves:
                    self.answer(order, progress.words)
            self._saves = [each for each in self._saves if each[1] > progress.saves]
        return grows

    def stop_ranks(self) -> None:
        """Asks the ranks to stop with a snapshot."""
        self._wish(stop=True)

    def end(self, reason: str) -> None:
        """Answers the orders that the end of the ranks leaves open.

        Args:
            reason: Words for the end.
        """
        progress = self._progress()
        saved = progress.words if progress is not None else ""
        self.taken()
        for order, _ in self._saves:
            self.answer(order, f"nothing was saved, for the ranks have ended: {reason}")
        for order in self._stops:
            self.answer(order, "; ".join(filter(None, [reason, saved])))
        self._saves, self._stops = [], []

    def answer(self, order: Order, text: str) -> None:
        """Answers an order."""
        with self._files.writing(self._folder):
            control_files.answer(self._folder, order, text)

    def _wish(self, **changes: object) -> None:
        self._wishes = self._wishes._replace(**changes)
        with self._files.writing(self._folder):
            control_files.write(self._folder, self._wishes)

    def _progress(self) -> Progress | None:
        """Returns the progress that rank 0 of this start has written."""
        try:
            found = control_files.read(self._folder, Progress)
        except OSError:
            return None
        is_of_this = found is not None and found.start == self._wishes.start
        return found if is_of_this else None
