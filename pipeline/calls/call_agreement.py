"""Compares each call of a pipeline's ranks with the calls of the others.

The method and the number of samples may differ in every call. They are compared while
the call runs: a reduction collects them behind the computation, so no rank waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from chainer_kernels.product_dtype import DTYPES
from chainer_kernels.switch import products_in_force
from divisible.communication.errors import StallError
from divisible.communication.exit_notices import exit_notices
from divisible.communication.flight_record import (
    CALL,
    END,
    EVERYBODY,
    own_flight_record,
)
from divisible.communication.wait_queries import WaitPlace, wait_queries
from divisible.communication.waiting import wait
from pipeline.calls import differences
from pipeline.calls.carried_samples import check_carried, code_of, of_code

#: A step that adds to the gradients of the one before.
ACCUMULATES = "step(accumulate=True)"
_STEPS = "step", ACCUMULATES

#: The calls that ranks compare.
CALLS = (
    "step",
    ACCUMULATES,
    "evaluate",
    "predict",
    "timeline",
    "agree",
    "save",
    "load",
    "rebalance",
    "compress",
    "reset",
    "flush",
    "close",
)

_OF_USABLE_MODELS = ("step", ACCUMULATES, "evaluate", "predict", "save")

#: Stands for a value that must be alike on all ranks, but that this rank does not have.
UNSAID = np.iinfo(np.int64).min

# Numbers of each replica: samples of x, samples of t, samples that the loss counts, and
# which layers' states have the fewest samples.
_N_COUNTS = 4


class _CallRecord(NamedTuple):
    """A rank's description of its call, as integers."""

    number: int
    call: int
    loss_scale: int
    products: int
    reports: int
    vote: int


class Agreed(NamedTuple):
    """The outcome of a comparison of a call, which all ranks know.

    Attributes:
        n_samples: Number of samples of ``x`` in each replica.
        n_counted: Number of samples that the loss counts in each replica, or -1.
        vote: The largest vote of all ranks.
        somebody_reports: Whether a rank has values to report.
        unlike: Numbers of the values that should be alike on all ranks, but are not.
    """

    n_samples: list[int]
    n_counted: list[int]
    vote: int = 0
    somebody_reports: bool = False
    unlike: Sequence[int] = ()


class _Comparison(NamedTuple):
    """A comparison of a call on all ranks that is not finished yet.

    Attributes:
        request: MPI's request of the reduction.
        extremes: Receives the largest of each number, and the largest of its negative.
    """

    request: MPI.Request
    extremes: np.ndarray


class CallAgreement:
    """Counts the calls of a rank, and compares each with the calls of the others.

    A rank whose script ends sends the others the number of calls that it has finished.
    A rank that waits for it in a later call gets an error at once.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of all ranks of all replicas.
        timeout (float): Seconds to wait for the other ranks.
        name (str): Name of the pipeline in hexadecimal digits, the same on all ranks.
        replica (int): Number of this rank's replica.
        n_replicas (int): Number of replicas.

    Attributes:
        pipeline (int): Number of the pipeline, the same on all ranks.
        call (str): Name of the last call.
        has_failed (bool): Whether a call has failed on this rank, or is still running.
        is_within (bool): Whether a call is running.
        refusal (str or None): Reason why the model must not be used, with a cure;
            ``None`` if it may be used.
        streamed: This rank's parameters on disk, each with a refusal of its own.
        n_alike (int): Number of values, besides the call, that must be alike.
        excluded: Calls that are refused now, and why, by name.
        carriers: Paths of the links that keep a state from call to call.
        agreed (Agreed): Outcome of the last call that was compared.
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
        self.pipeline = int(name[:8], 16)
        self._wait_queries = wait_queries(comm)
        self._n_calls = 0
        self.call = ""
        self.has_failed = self.is_within = False
        self.refusal: str | None = None
        self.streamed: Sequence[Any] = ()
        self.n_alike = 0
        self.excluded: dict[str, str] = {}
        self.carriers: Sequence[str] = ()
        self.agreed = Agreed([0] * n_replicas, [-1] * n_replicas)
        self._comparison: _Comparison | None = None
        self._exit_notices = exit_notices(comm)
        self._exit_notices.words = self._words_of_exit

    @contextmanager
    def made(self, call: str) -> Iterator[None]:
        """Counts a call, also one that is refused before anything is sent.

        Args:
            call (str): One of `CALLS` if it is to be compared; else a text for another
                operation that all ranks take part in.

        Raises:
            RuntimeError: See :meth:`guarded` and :meth:`check_usable`.
            ValueError: If the call is one of :attr:`excluded`.
        """
        if call in self.excluded:
            raise ValueError(self.excluded[call])
        if call in _OF_USABLE_MODELS and (self.refusal is not None or self.streamed):
            self.check_usable()
        with self._guarded(begins=True):
            self._n_calls += 1
            self.call = call
            text = call + self._where
            self._wait_queries.call = self._n_calls, text
            own_flight_record.begin_call(self.pipeline, self._n_calls, text)
            yield
            own_flight_record.write(CALL, END, text)
            if call in _STEPS:
                own_flight_record.end_step()

    def check_usable(self) -> None:
        """Refuses a model that cannot be used.

        Raises:
            RuntimeError: With the :attr:`refusal`, or the refusal of a parameter on
                disk.
        """
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        for param in self.streamed:
            param.check_usable()

    def use_again(self) -> None:
        """Withdraws all refusals, once the state of the model has been loaded."""
        self.refusal = None
        for param in self.streamed:
            param.use_again()

    def guarded(self) -> AbstractContextManager[None]:
        """Returns a context for messages, which refuses them after a failure.

        Raises:
            RuntimeError: If something failed before, or the pipeline is closed.
        """
        return self._guarded(begins=False)

    def awaiting(self) -> AbstractContextManager[None]:
        """Returns a context for a wait for messages of an earlier call.

        Within a call it does nothing; else it is :meth:`guarded`. In other threads than
        the main one it does nothing either, because a call may begin meanwhile.
        """
        is_main = threading.current_thread() is threading.main_thread()
        return self.guarded() if is_main and not self.is_within else nullcontext()

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
        # A rank that waits for this one long polls these values.
        place = self._exit_notices
        place.number += begins
        place.is_finished, place.is_active = False, True
        try:
            yield
        except StallError:
            # The wait and its cause are in the flight record already.
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
            n_inputs (int): Number of samples of ``x``; -1 where it is not read.
            n_targets (int): Number of samples of ``t``; -1 where it is not read.
            n_counted (int): Number of samples that the loss counts; -1 if not known.
            reports (bool): Whether this rank has values to report after the call.
            vote (int): A number; all ranks learn the largest.
            loss_scale (float or None): Factor by which the loss is multiplied.
            alike (numpy.ndarray or None): Integers that must be alike on all ranks, of
                the shape ``(2, n_alike)``. The rows have the largest number on this
                rank and the largest negative; `UNSAID` where this rank has none.
            carried (tuple or None): Fewest samples of ``x`` that a state of this rank's
                layers belongs to, and the link with that state, of ``carriers``.

        Raises:
            DisagreementError: If this rank reads ``x`` and ``t``, which differ.
        """
        _check_samples(n_inputs, n_targets)
        if self._comm.size == 1:
            self._comparison = None
            # Stages of one rank may differ, too.
            unlike = () if alike is None else _unlike(alike)
            self.agreed = Agreed([n_inputs], [n_counted], vote, bool(reports), unlike)
            if carried is not None:
                check_carried([n_inputs], [carried])
            return
        record = _CallRecord(
            self._n_calls,
            CALLS.index(self.call),
            # The bits of floats that are not negative are ordered as the floats are.
            int(np.float64(loss_scale or 0).view(np.int64)),
            DTYPES.index(products_in_force()),
            reports,
            vote,
        )
        samples = np.full((_N_COUNTS, self._n_replicas), UNSAID)
        code = UNSAID if carried is None else code_of(carried, self.carriers)
        samples[:, self._replica] = n_inputs, n_targets, n_counted, code
        mine = np.concatenate([record, samples.reshape(-1)])
        # The largest negative gives all ranks the least number as well.
        if alike is None:
            alike = np.full((2, self.n_alike), UNSAID)
        mine = np.concatenate([[mine, -mine], alike], axis=1)
        extremes = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, extremes, MPI.MAX)
        self._comparison = _Comparison(request, extremes)

    @property
    def is_compared(self) -> bool:
        """Whether the comparison is finished, and the ranks agree."""
        return self._comparison is None

    def check(self) -> None:
        """Polls for the outcome of the comparison, and checks it once it has come.

        Raises:
            DisagreementError: If the ranks' calls differ.
        """
        if self._comparison is not None and self._comparison.request.Test():
            self._end_comparison(self._comparison.extremes)

    def finish(self) -> None:
        """Waits for the outcome of the comparison, and checks it.

        Raises:
            DisagreementError: If the ranks' calls differ.
            StallError: If a rank has not made the call in time.
        """
        if self._comparison is not None:
            wait(
                self._comparison.request.Test,
                self._timeout,
                lambda: f"to call {self.call}",
                place=WaitPlace(self._comm, EVERYBODY, self._n_calls),
            )
            self._end_comparison(self._comparison.extremes)

    def compare(self, vote: int = 0) -> None:
        """Compares the call with those of all ranks, and waits for them.

        Args:
            vote (int): A number; all ranks learn the largest.

        Raises:
            DisagreementError: If the ranks' calls differ.
            StallError: If a rank has not made the call in time.
        """
        self.start(vote=vote)
        self.finish()

    def _words_of_exit(self, rank: int, n_behind: int) -> str:
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
        rank, others = self._comm.rank, self._everywhere
        if least.call != most.call:
            called = CALLS[least.call], CALLS[most.call]
            raise differences.of_calls(rank, self.call, *called, others)
        if least.number != most.number:
            other = least if most.number == self._n_calls else most
            raise differences.of_numbers(rank, self._n_calls, other.number)
        for replica, counts in enumerate(samples.T.tolist()):
            where = f" in replica {replica}" if n_replicas > 1 else ""
            _check_samples(*counts[:2], where)
        if self.carriers:
            codes = samples[3].tolist()
            states = [None if c == UNSAID else of_code(c, self.carriers) for c in codes]
            check_carried(n_samples, states)
        if least.loss_scale != most.loss_scale:
            raise differences.of_loss_scales(least.loss_scale, most.loss_scale)
        if least.products != most.products:
            raise differences.of_products(rank, products_in_force())


def _unlike(extremes: np.ndarray) -> list[int]:
    """Returns the numbers of the things that should be alike, and are not."""
    largest, negative = extremes
    # A value that no rank has is alike.
    return np.flatnonzero((largest != -negative) & (largest != UNSAID)).tolist()


def _check_samples(n_inputs: int, n_targets: int, where: str = "") -> None:
    """Compares the numbers of samples of ``x`` and ``t``, if both are known."""
    if -1 not in (n_inputs, n_targets) and n_inputs != n_targets:
        raise differences.of_samples(n_inputs, n_targets, where)
