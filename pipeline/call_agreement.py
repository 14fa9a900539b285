"""Compares, call after call, what the ranks of a pipeline do.

What every call brings anew (which method it is, how many samples it has) is compared
while the call runs: the ranks' words are collected behind the computation, so nobody
waits for them.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.tags import FAREWELL_TAG
from divisible.communication.waiting import wait

CALLS = (
    "step",
    "evaluate",
    "predict",
    "timeline",
    "agree",
    "save",
    "load",
    "close",
)

# How long a rank that has ended its script listens for the others to end theirs.
_SECONDS_FOR_FAREWELLS = 10.0


class _CallRecord(NamedTuple):
    """What a rank says of its call, as integers; of each the largest is found.

    With the largest of the negative it is known whether all are equal.
    """

    number: int
    minus_number: int
    call: int
    minus_call: int
    loss_scale: int
    minus_loss_scale: int
    n_inputs: int
    n_targets: int
    reports: int
    vote: int


class CallAgreement:
    """Counts the calls of a rank, and compares each with those of the others.

    A rank whose script ends tells the others how many calls it has finished, so that
    who waits for it in another one learns at once that it waits in vain.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline.
        timeout (float): Seconds to wait for the other ranks.
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self._comm = comm
        self._timeout = timeout
        self._n_calls = 0
        #: The name of the last call.
        self.call = ""
        #: Whether a call failed on this rank, or is being made.
        self.has_failed = False
        self._request: MPI.Request | None = None
        self._farewells: list[MPI.Request] = []
        # The ranks that have left, and how many calls they finished.
        self._left: dict[int, int] = {}
        #: Whether some rank has something to report; known when the call is finished.
        self.somebody_reports = False
        #: The largest vote of all ranks; known when the call is finished.
        self.vote = 0
        _agreements.append(self)

    @contextmanager
    def made(self, call: str) -> Iterator[None]:
        """Counts a call, even one that is refused before anything is sent.

        Args:
            call (str): One of `CALLS`, if it is to be compared; or what else all ranks
                take part in.

        Raises:
            RuntimeError: See :meth:`guarded`.
        """
        with self.guarded():
            self._n_calls += 1
            self.call = call
            yield

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Sees to it that nothing follows what failed.

        Raises:
            RuntimeError: If something failed before, or the pipeline is closed.
        """
        if self._comm == MPI.COMM_NULL:
            raise RuntimeError("this Pipeline is closed: make a new one on all ranks")
        if self.has_failed:
            raise RuntimeError(
                f"an earlier call failed on rank {self._comm.rank}, so the ranks'"
                f" messages are out of step: make a new Pipeline on all ranks"
            )
        self.has_failed = True
        yield
        self.has_failed = False

    def start(
        self,
        n_inputs: int = -1,
        n_targets: int = -1,
        reports: bool = False,
        vote: int = 0,
        loss_scale: float | None = None,
    ) -> None:
        """Begins to compare the call.

        Args:
            n_inputs (int): Samples of ``x``, where it is read.
            n_targets (int): Samples of ``t``, where it is read.
            reports (bool): Whether this rank has something to report after it.
            vote (int): What this rank wants all to know the largest of.
            loss_scale (float or None): What the call's loss is multiplied by.

        Raises:
            DisagreementError: If this rank alone sees that ``x`` and ``t`` differ.
        """
        _check_samples(n_inputs, n_targets)
        number, call = self._n_calls, CALLS.index(self.call)
        # The bits of floats that are not negative have the floats' order.
        scale = int(np.float64(loss_scale or 0).view(np.int64))
        mine = np.array(
            _CallRecord(
                number=number,
                minus_number=-number,
                call=call,
                minus_call=-call,
                loss_scale=scale,
                minus_loss_scale=-scale,
                n_inputs=n_inputs,
                n_targets=n_targets,
                reports=reports,
                vote=vote,
            )
        )
        self._largest = np.empty_like(mine)
        self._request = self._comm.Iallreduce(mine, self._largest, MPI.MAX)

    def check(self) -> None:
        """Looks whether the ranks' words are there, and if they are, compares them.

        Raises:
            DisagreementError: If the ranks do not do the same.
            StallError: If a rank has left that will not take part.
        """
        if self._request is not None and self._request.Test():
            self._request = None
            self._compare()
        self._check_farewells()

    def finish(self) -> None:
        """Waits until the words of all ranks are there, and compares them.

        Raises:
            DisagreementError: If the ranks do not do the same.
            StallError: If a rank has not made the call in time.
        """
        if self._request is not None:
            self.wait(self._request.Test, lambda: f"all ranks to call {self.call}")
            self._request = None
            self._compare()

    def wait(self, test: Callable[[], Any], waiting_for: Callable[[], str]) -> Any:
        """Waits as all waits do, but for no rank that left."""

        def watched() -> Any:
            return test() or self._check_farewells()

        return wait(watched, self._timeout, waiting_for)

    def leave(self) -> None:
        """Tells the other ranks that this one makes no more calls."""
        if self._comm == MPI.COMM_NULL:
            return
        # In the last one it may have left others alone.
        word = np.array([self._n_calls - self.has_failed])
        self._farewells = [
            self._comm.Isend(word, rank, FAREWELL_TAG)
            for rank in range(self._comm.size)
            if rank != self._comm.rank
        ]

    def hear_farewells(self, deadline: float) -> None:
        """Takes the last words of the other ranks.

        MPI waits for them in the end anyway, and complains of messages left over.

        Args:
            deadline (float): When to give up, on the clock of ``time.monotonic``.
        """
        if self._comm == MPI.COMM_NULL:
            return
        while len(self._left) < self._comm.size - 1 and time.monotonic() < deadline:
            if not self._hear_farewell():
                time.sleep(0.001)

    def _hear_farewell(self) -> bool:
        status = MPI.Status()
        if not self._comm.Iprobe(MPI.ANY_SOURCE, FAREWELL_TAG, status):
            return False
        word = np.empty(1, dtype=int)
        self._comm.Recv(word, status.source, FAREWELL_TAG)
        self._left[status.source] = int(word[0])
        return True

    def _check_farewells(self) -> None:
        self._hear_farewell()
        for rank, n_calls in self._left.items():
            # Up to its last call it took part; it may leave before others finish that.
            if n_calls < self._n_calls:
                raise StallError(
                    f"rank {rank} ended its script after call {n_calls} of the"
                    f" pipeline, but rank {self._comm.rank} makes call {self._n_calls},"
                    f" {self.call}: all ranks must make the same calls"
                )

    def _compare(self) -> None:
        words = _CallRecord(*self._largest.tolist())
        self.somebody_reports = bool(words.reports)
        self.vote = words.vote
        rank = self._comm.rank
        first, last = -words.minus_call, words.call
        if first != last:
            raise DisagreementError(
                f"some ranks call {CALLS[first]} and others {CALLS[last]}; rank {rank}"
                f" calls {self.call}. All ranks must make the same calls in the same"
                f" order"
            )
        least, most = -words.minus_number, words.number
        if least != most:
            raise DisagreementError(
                f"for rank {rank} this is call {self._n_calls} of the pipeline, for"
                f" others it is call {least if most == self._n_calls else most}: a"
                f" rank left a call out, or caught the error of one"
            )
        _check_samples(words.n_inputs, words.n_targets)
        scales = np.array([-words.minus_loss_scale, words.loss_scale]).view(float)
        if scales[0] != scales[1]:
            raise DisagreementError(
                f"the ranks scale the loss by {scales[0]:g} up to {scales[1]:g}: their"
                f" optimizers must decide together, as MixedPrecision(optimizer,"
                f" comm=comm) does"
            )


def _check_samples(n_inputs: int, n_targets: int) -> None:
    """Compares the samples of ``x`` and ``t``, if both are known."""
    if -1 not in (n_inputs, n_targets) and n_inputs != n_targets:
        raise DisagreementError(
            f"x has {n_inputs} samples, but t has {n_targets}: x and t must be of the"
            f" same minibatch"
        )


# Of all pipelines of this process, also of those that it has dropped meanwhile, as a
# function does with its own when it returns early.
_agreements: list[CallAgreement] = []


@atexit.register
def _leave() -> None:
    if MPI.Is_initialized() and not MPI.Is_finalized():
        for agreement in _agreements:
            agreement.leave()
        deadline = time.monotonic() + _SECONDS_FOR_FAREWELLS
        for agreement in _agreements:
            agreement.hear_farewells(deadline)
