"""Compares, call after call, what the ranks of a pipeline do.

What every call brings anew (which method it is, how many samples it has) is compared
while the call runs: the ranks' words are collected behind the computation, so nobody
waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.farewells import farewells
from divisible.communication.flight_record import (
    CALL,
    END,
    EVERYBODY,
    own_flight_record,
)
from divisible.communication.roll_call import Place, roll_call
from divisible.communication.waiting import wait

#: The calls that ranks compare.
CALLS = tuple(
    "step evaluate predict timeline agree save load rebalance compress reset"
    " close".split()
)

_OF_USABLE_MODELS = ("step", "evaluate", "predict", "save")

#: Of things that must be alike, one of which a rank has nothing to say.
UNSAID = np.iinfo(np.int64).min

# Of samples by replica: of x, of t, those that the loss counts, and which states of
# fewest samples layers carry.
_N_COUNTS = 4


class _CallRecord(NamedTuple):
    """A rank's description of its call, as integers."""

    number: int
    call: int
    loss_scale: int
    reports: int
    vote: int


class Agreed(NamedTuple):
    """The outcome of a comparison of a call, which all ranks know.

    Attributes:
        n_samples: How many samples ``x`` has in each replica.
        n_counted: How many of them the loss counts, by replica; -1 if that turns out
            later.
        vote: The largest vote of all ranks.
        somebody_reports: Whether some rank has something to report.
        unlike: The numbers of the things that should be alike, and are not.
    """

    n_samples: list[int]
    n_counted: list[int]
    vote: int = 0
    somebody_reports: bool = False
    unlike: Sequence[int] = ()


class _Comparison(NamedTuple):
    """The words of all ranks on a call, which are on their way.

    Attributes:
        request: MPI's.
        extremes: Where to the largest of each word and of its negative come.
    """

    request: MPI.Request
    extremes: np.ndarray


class CallAgreement:
    """Counts the calls of a rank, and compares each with those of the others.

    A rank whose script ends tells the others how many calls it has finished, so that
    who waits for it in another one learns at once that it waits in vain.

    Args:
        comm (mpi4py.MPI.Comm): Of all ranks of the pipeline, and of its replicas.
        timeout (float): Seconds to wait for the other ranks.
        name (str): Of the pipeline, in hexadecimal digits, on all ranks the same.
        replica (int): This rank's.
        n_replicas (int): How many there are.

    Attributes:
        call (str): The name of the last call.
        has_failed (bool): Whether a call failed on this rank, or is being made.
        is_within (bool): Whether one is being made.
        refusal (str or None): Why the model must not be used, with what to do; None if
            it may be.
        streamed: This rank's parameters on disk, each with a refusal of its own.
        n_alike (int): How many things must be alike on all ranks besides the call.
        carriers: The paths of the links that carry a state from call to call.
        agreed (Agreed): Of the last call that was compared.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        timeout: float,
        name: str,
        replica: int = 0,
        n_replicas: int = 1,
    ) -> None:
        self._comm = comm
        self._replica, self._n_replicas = replica, n_replicas
        self._where = f", in replica {replica}" if n_replicas > 1 else ""
        self._everywhere = ", in all replicas" if n_replicas > 1 else ""
        self._timeout = timeout
        self._pipeline = int(name[:8], 16)
        self._roll_call = roll_call(comm)
        self._n_calls = 0
        self.call = ""
        self.has_failed = self.is_within = False
        self.refusal: str | None = None
        self.streamed: Sequence[Any] = ()
        self.n_alike = 0
        self.carriers: Sequence[str] = ()
        self.agreed = Agreed([0] * n_replicas, [-1] * n_replicas)
        self._comparison: _Comparison | None = None
        self._farewells = farewells(comm)
        self._farewells.words = self._words_of_farewell

    @contextmanager
    def made(self, call: str) -> Iterator[None]:
        """Counts a call, even one that is refused before anything is sent.

        Args:
            call (str): One of `CALLS`, if it is to be compared; or what else all ranks
                take part in.

        Raises:
            RuntimeError: See :meth:`guarded` and :meth:`check_usable`.
        """
        if call in _OF_USABLE_MODELS and (self.refusal is not None or self.streamed):
            self.check_usable()
        with self._guarded(begins=True):
            self._n_calls += 1
            self.call = call
            text = call + self._where
            self._roll_call.call = self._n_calls, text
            own_flight_record.begin_call(self._pipeline, self._n_calls, text)
            yield
            own_flight_record.write(CALL, END, text)

    def check_usable(self) -> None:
        """Refuses to use a model that is in no state to be used.

        Raises:
            RuntimeError: With the :attr:`refusal`, or that of a parameter on disk.
        """
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        for param in self.streamed:
            param.check_usable()

    def use_again(self) -> None:
        """Withdraws all refusals, as the state of the model has been loaded."""
        self.refusal = None
        for param in self.streamed:
            param.refusal = None

    def guarded(self) -> AbstractContextManager[None]:
        """Sees to it that nothing follows what failed.

        Raises:
            RuntimeError: If something failed before, or the pipeline is closed.
        """
        return self._guarded(begins=False)

    @contextmanager
    def _guarded(self, begins: bool) -> Iterator[None]:
        if self._comm == MPI.COMM_NULL:
            raise RuntimeError("this Pipeline is closed: make a new one on all ranks")
        if self.has_failed:
            raise RuntimeError(
                f"an earlier call failed on rank {self._comm.rank}, so the ranks'"
                f" messages are out of step: make a new Pipeline on all ranks"
            )
        self.has_failed = self.is_within = True
        # Whoever waits for this rank looks there, if the wait lasts.
        place = self._farewells
        place.number += begins
        place.is_finished, place.is_active = False, True
        try:
            yield
        except StallError:
            # That it waits is in the flight record, and for whom.
            raise
        except BaseException as error:
            own_flight_record.fail(error)
            raise
        finally:
            self.is_within = place.is_active = False
        place.is_finished = True
        self.has_failed = False

    def start(
        self,
        n_inputs: int = -1,
        n_targets: int = -1,
        n_counted: int = -1,
        reports: bool = False,
        vote: int = 0,
        loss_scale: float | None = None,
        alike: np.ndarray | None = None,
        carried: tuple[int, str] | None = None,
    ) -> None:
        """Begins to compare the call.

        Args:
            n_inputs (int): Samples of ``x``, where it is read.
            n_targets (int): Samples of ``t``, where it is read.
            n_counted (int): Samples that the loss counts, where that is known.
            reports (bool): Whether this rank has something to report after it.
            vote (int): What this rank wants all to know the largest of.
            loss_scale (float or None): What the call's loss is multiplied by.
            alike (numpy.ndarray or None): Integers for things that must be alike, of
                the shape (2, ``n_alike``): the largest of what this rank says of each,
                and the largest of the negatives, or `UNSAID`.
            carried (tuple or None): Of the states of this rank's layers, of how many
                samples of ``x`` the one of the fewest is, and which of the ``carriers``
                has it.

        Raises:
            DisagreementError: If this rank alone sees that ``x`` and ``t`` differ.
        """
        _check_samples(n_inputs, n_targets)
        if self._comm.size == 1:
            self._comparison = None
            # Stages of one rank may differ, too.
            unlike = () if alike is None else _unlike(alike)
            self.agreed = Agreed([n_inputs], [n_counted], vote, bool(reports), unlike)
            if carried is not None:
                self._check_carried(n_inputs, self._code(carried), "")
            return
        record = _CallRecord(
            self._n_calls,
            CALLS.index(self.call),
            # The bits of floats that are not negative have the floats' order.
            int(np.float64(loss_scale or 0).view(np.int64)),
            reports,
            vote,
        )
        samples = np.full((_N_COUNTS, self._n_replicas), UNSAID)
        counts = n_inputs, n_targets, n_counted, self._code(carried)
        samples[:, self._replica] = counts
        mine = np.concatenate([record, samples.reshape(-1)])
        # With the largest of the negative, all know the least as well.
        if alike is None:
            alike = np.full((2, self.n_alike), UNSAID)
        mine = np.concatenate([[mine, -mine], alike], axis=1)
        extremes = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, extremes, MPI.MAX)
        self._comparison = _Comparison(request, extremes)

    @property
    def is_compared(self) -> bool:
        """Whether the ranks' words have come, and agree."""
        return self._comparison is None

    def check(self) -> None:
        """Looks whether the ranks' words are there, and if they are, compares them.

        Raises:
            DisagreementError: If the ranks do not do the same.
        """
        if self._comparison is not None and self._comparison.request.Test():
            self._end_comparison(self._comparison.extremes)

    def finish(self) -> None:
        """Waits until the words of all ranks are there, and compares them.

        Raises:
            DisagreementError: If the ranks do not do the same.
            StallError: If a rank has not made the call in time.
        """
        if self._comparison is not None:
            wait(
                self._comparison.request.Test,
                self._timeout,
                lambda: f"to call {self.call}",
                place=Place(self._comm, EVERYBODY, self._n_calls),
            )
            self._end_comparison(self._comparison.extremes)

    def compare(self, vote: int = 0) -> None:
        """Compares the call with those of all ranks, and waits for them.

        Args:
            vote (int): What this rank wants all to know the largest of.

        Raises:
            DisagreementError: If the ranks do not do the same.
            StallError: If a rank has not made the call in time.
        """
        self.start(vote=vote)
        self.finish()

    def _words_of_farewell(self, rank: int, n_behind: int) -> str:
        return (
            f"rank {rank} ended its script after call {self._n_calls - n_behind} of the"
            f" pipeline, but rank {self._comm.rank} makes call {self._n_calls},"
            f" {self.call}: all ranks must make the same calls{self._everywhere}"
        )

    def _end_comparison(self, extremes: np.ndarray) -> None:
        self._comparison = None
        n, n_replicas = len(_CallRecord._fields), self._n_replicas
        most = _CallRecord(*extremes[0, :n].tolist())
        least = _CallRecord(*(-extremes[1, :n]).tolist())
        end = n + _N_COUNTS * n_replicas
        samples = extremes[0, n:end].reshape(_N_COUNTS, n_replicas)
        n_samples, _, n_counted, _ = samples.tolist()
        unlike = _unlike(extremes[:, end:])
        self.agreed = Agreed(n_samples, n_counted, most.vote, most.reports > 0, unlike)
        self._check_calls(least, most)
        for replica, counts in enumerate(samples.T.tolist()):
            n_inputs, n_targets, _, code = counts
            where = f" in replica {replica}" if n_replicas > 1 else ""
            _check_samples(n_inputs, n_targets, where)
            self._check_carried(n_inputs, code, where)
        _check_loss_scales(least, most)

    def _check_calls(self, least: _CallRecord, most: _CallRecord) -> None:
        """Refuses different calls, or the same one counted differently."""
        rank = self._comm.rank
        if least.call != most.call:
            raise DisagreementError(
                f"some ranks call {CALLS[least.call]} and others {CALLS[most.call]};"
                f" rank {rank} calls {self.call}. All ranks must make the same calls in"
                f" the same order{self._everywhere}"
            )
        if least.number != most.number:
            other = least if most.number == self._n_calls else most
            raise DisagreementError(
                f"for rank {rank} this is call {self._n_calls} of the pipeline, for"
                f" others it is call {other.number}: a rank left a call out, or caught"
                f" the error of one"
            )

    def _code(self, carried: tuple[int, str] | None) -> int:
        """Returns a number that is largest for the fewest samples."""
        if carried is None:
            return UNSAID
        n, path = carried
        return -(n * len(self.carriers) + self.carriers.index(path))

    def _check_carried(self, n_inputs: int, code: int, where: str) -> None:
        """Refuses more samples than there are states to go on from."""
        if code == UNSAID:
            return
        n, place = divmod(-code, len(self.carriers))
        if n_inputs > n:
            raise DisagreementError(
                f"x has {n_inputs} samples{where}, but layers go on from the minibatch"
                f" before: {self.carriers[place]} carries the state of {n}. Give"
                f" minibatches of one size, or call reset_states() on every rank before"
            )


def _unlike(extremes: np.ndarray) -> list[int]:
    """Returns the numbers of the things that should be alike, and are not."""
    largest, negative = extremes
    # What nobody speaks of is alike.
    return np.flatnonzero((largest != -negative) & (largest != UNSAID)).tolist()


def _check_samples(n_inputs: int, n_targets: int, where: str = "") -> None:
    """Compares the samples of ``x`` and ``t``, if both are known."""
    if -1 not in (n_inputs, n_targets) and n_inputs != n_targets:
        raise DisagreementError(
            f"x has {n_inputs} samples{where}, but t has {n_targets}: x and t must be"
            f" of the same minibatch; each array of a tuple or a list is an input of"
            f" its own, not a sample"
        )


def _check_loss_scales(least: _CallRecord, most: _CallRecord) -> None:
    scales = np.array([least.loss_scale, most.loss_scale]).view(float)
    if scales[0] != scales[1]:
        raise DisagreementError(
            f"the ranks scale the loss by {scales[0]:g} up to {scales[1]:g}: their"
            f" optimizers must decide together, as MixedPrecision(optimizer,"
            f" comm=comm) does"
        )
