"""Weight gradients that run while a rank waits for a late message.

A rank runs its actions in order. An action that needs a message may have to wait for
it, although weight gradients (W) of later positions need nothing of other ranks. They
run meanwhile, one function after the other, until the message is there::

    the message of I2 in time    I0 I1 I2 W0 W1 W2
    late, in order               I0 I1 . . . I2 W0 W1 W2
    late, as here                I0 I1 W0 W- I2 -W W2       W1 in two pieces

Weight gradients keep their order, so sums have the same bits. None waits for longer
than in order, so less is held in memory. A function that has begun is not interrupted.
So for a moment the rank only waits, because most messages are hardly late.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Callable

from divisible.communication.flight_record import ACTION, BEGIN, END, own_flight_record
from divisible.schedules.actions import Action
from divisible.schedules.rank_program import Piece, Record, Task
from pipeline.stages.stage import Stage

# Share of a function's mean time for which a rank only waits.
_PATIENCE = 0.25
# Seconds between two polls of a rank that only waits.
_SLEEP = 20e-6


class EarlyWeights:
    """The weight gradients of one rank that may run before their positions.

    Args:
        stages: Stages of this rank, by their position in the pipeline.

    Attributes:
        action (Action or None): The W that runs early at the moment, or has failed.
    """

    def __init__(self, stages: Mapping[int, Stage]) -> None:
        self._stages = stages
        self.action: Action | None = None
        # Mean seconds of a function in the last W of each stage.
        self._seconds: dict[int, float] = {}

    def begin(self, record: Record) -> None:
        """Begins to run a program.

        Args:
            record (Record): Takes the times of W's that run early.
        """
        self._record, self._program = record, record.program
        # Number of W's that have run, and what is left of the next one.
        self._n_run = 0
        self._rest: Iterator[None] | None = None

    def has_run(self, position: int) -> bool:
        """Returns whether the W at a position of the program has run already."""
        n_run, weights = self._n_run, self._program.weights
        return n_run > 0 and weights[n_run - 1].position >= position

    def run(self, action: Action) -> None:
        """Runs a W at its own position, or what is left of it.

        Args:
            action (Action): The next W of the program.
        """
        self._n_run += 1
        rest, self._rest = self._rest, None
        if rest is not None:
            for _ in rest:
                pass
            return
        start, n_functions = time.perf_counter(), 0
        for _ in self._parts(action):
            n_functions += 1
        if n_functions:
            seconds = time.perf_counter() - start
            self._seconds[action.stage] = seconds / n_functions

    def run_until(self, has_come: Callable[[], bool], position: int) -> None:
        """Runs weight gradients until a message has come, or none is left.

        Args:
            has_come: Returns whether the message has come.
            position (int): Position of the message in the program.
        """
        while not has_come():
            task = self._next(position)
            if task is None or self._comes_soon(has_come, task.operation.stage):
                return
            self._run_piece(task, has_come)

    def _next(self, position: int) -> Task | None:
        """Returns the next W, if it may run before the task at a position."""
        weights = self._program.weights
        if self._n_run == len(weights):
            return None
        after, since = weights[self._n_run]
        task = self._program.tasks[after]
        if since > position:
            return None
        stage, _, _ = task.operation
        if self._rest is None and not self._stages[stage].adds_in_any_order(
            task.operation.microbatches
        ):
            return None
        return task

    def _comes_soon(self, has_come: Callable[[], bool], stage: int) -> bool:
        """Waits for a moment; returns whether the message has come."""
        if stage not in self._seconds:
            # The first W of a stage runs in order, and is measured.
            return True
        end = time.perf_counter() + _PATIENCE * self._seconds[stage]
        while time.perf_counter() < end:
            if has_come():
                return True
            time.sleep(_SLEEP)
        return False

    def _run_piece(self, task: Task, has_come: Callable[[], bool]) -> None:
        """Runs a W up to its end, or until the message comes."""
        self.action = task.operation
        if self._rest is None:
            self._rest = self._parts(task.operation)
        position = self._program.weights[self._n_run].position
        own_flight_record.write(ACTION, BEGIN, task.name)
        start = time.perf_counter()
        for _ in self._rest:
            if has_come():
                self._record.pieces.append(Piece(position, start, time.perf_counter()))
                break
        else:
            self._rest = None
            self._n_run += 1
            times = self._record.times
            times[2 * position : 2 * position + 2] = start, time.perf_counter()
        own_flight_record.write(ACTION, END, task.name)
        self.action = None

    def _parts(self, action: Action) -> Iterator[None]:
        return self._stages[action.stage].backward_weight(action.microbatches)
