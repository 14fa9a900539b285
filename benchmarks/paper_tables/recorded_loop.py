"""The paper's loop, with a record of what every rank does in it."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Callable
from unittest import mock

import chainer
import chainermn
from mpi4py import MPI

from benchmarks.common.perceptron import paper_loop
from divisible import Divisible
from divisible.communication.collectives import clock_offsets
from divisible.schedules.rank_program import Span
from divisible.schedules.timeline import Timeline

#: Seconds that a rank may wait for another rank's clock.
TIMEOUT = 600.0


class RecordedLoop:
    """Trains by ``examples/paper_loop``, whose calls become events of a timeline.

    ::

        the loop's call     event on rank r, of the k-th microbatch
        recv_data           wait for F k of rank r - 1
        model(mx)           F k
        send_data           send of F k
        recv_grad           wait for B k of rank r + 1
        y.backward()        B k
        send_grad           send of B k
        optimizer.update()  update

    Args:
        comm: Ranks of the stages, in order.
        stage: Stage of this rank.
        n_microbatches: Number of microbatches in a minibatch.
    """

    def __init__(self, comm: MPI.Comm, stage: Divisible, n_microbatches: int) -> None:
        self._comm, self._n_microbatches = comm, n_microbatches
        self._chainermn = chainermn.create_communicator("naive", comm)
        # A module of its own: other loops keep the functions as they are.
        self._loop = loop = paper_loop()
        here, before, after = comm.rank, comm.rank - 1, comm.rank + 1
        for name, what, category in (
            ("recv_data", f"{before}F{{}}<{before}", "wait"),
            ("send_data", f"{here}F{{}}>{after}", "send"),
            ("recv_grad", f"{after}B{{}}<{after}", "wait"),
            ("send_grad", f"{here}B{{}}>{before}", "send"),
        ):
            setattr(loop, name, self._recorded(getattr(loop, name), what, category))
        self._forward = self._recorded(stage, f"{here}F{{}}", "F")
        self._spans: list[Span] = []
        self._counts: Counter[str] = Counter()

    def step(self, x: Any, t: Any, update: Callable[[], None]) -> None:
        """Trains on one minibatch.

        Args:
            x (array): Inputs.
            t (array): Labels.
            update: Updates the parameters of the stage.
        """
        self._spans, self._counts = [], Counter()
        backward = self._recorded(
            chainer.Variable.backward, f"{self._comm.rank}B{{}}", "B"
        )
        microbatch = -(-len(x) // self._n_microbatches)
        # The loop calls y.backward() of a variable that it makes itself.
        with mock.patch.object(chainer.Variable, "backward", backward):
            self._loop.train_minibatch(
                self._chainermn, self._forward, x, t, len(x), microbatch
            )
        self._recorded(update, "update", "update")()

    def _recorded(
        self, function: Callable, what: str, category: str
    ) -> Callable[..., Any]:
        """Returns a function that does the same, and records when.

        Args:
            function: Any function.
            what: Name of the event; ``{}`` stands for the number of the call in a step.
            category: Category of the event.
        """

        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            end, number = time.perf_counter(), self._counts[what]
            self._counts[what] += 1
            self._spans.append(Span(what.format(number), start, end, category))
            return result

        return call

    def timeline(self) -> Timeline:
        """Returns the timeline of the last step; all ranks must call it."""
        offset = clock_offsets(self._comm, TIMEOUT)[self._comm.rank]
        ranks = self._comm.allgather([span.since(offset) for span in self._spans])
        first = min(span.start for spans in ranks for span in spans)
        return Timeline(
            [
                (r, *span.since(first))
                for r, spans in enumerate(ranks)
                for span in spans
            ],
            n_ranks=self._comm.size,
            name="the paper's loop",
        )
