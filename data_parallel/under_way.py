"""One exchange, from its opening to the mean."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from data_parallel.arrays import Arrays, Spec
from data_parallel.coder import (
    MISSING,
    NOT_FINITE,
    PRESENT,
    Coder,
    Gradients,
    MakeCode,
)
from data_parallel.flow import Flow
from data_parallel.layout import Bucket, ExchangeUnit
from data_parallel.messages import OPENING, Buffers, Messages, Steps
from data_parallel.nodes import shares
from data_parallel.opening import Opening
from data_parallel.payloads import payloads_of
from data_parallel.units import Clock, Placement, UnitExchange
from divisible.communication.errors import DisagreementError
from divisible.communication.waiting import kept_at_errors


class Ranks(NamedTuple):
    """The ranks of an exchange, and objects for its messages.

    Attributes:
        comm: Communicator of the messages.
        placement: Placement of this rank.
        lanes: For each lane the rank that serves it on each node.
        buffers: Buffers for messages.
        timeout: Seconds that a wait may take.
    """

    comm: MPI.Comm
    placement: Placement
    lanes: Sequence[Sequence[int]]
    buffers: Buffers
    timeout: float


class UnderWay:
    """An exchange that has begun.

    Args:
        ranks: Ranks of the exchange.
        opening: The ranks' first messages.
        arrays: Arrays to be exchanged; they may come one after the other.
        buckets: Buckets of the arrays.
        make_code: Makes the code of the coded regions; ``None`` if this rank refuses
            the exchange.
        zero_fill: Whether zeros stand for an array that some ranks have not put.

    Attributes:
        clock: Seconds and bytes of the exchange.
        spans: For each bucket, in the order of their beginnings, the begin of its first
            unit and the end of its last one so far, by ``time.perf_counter``.
    """

    def __init__(
        self,
        ranks: Ranks,
        opening: Opening,
        arrays: Arrays,
        buckets: Sequence[Bucket],
        make_code: MakeCode | None,
        zero_fill: bool,
    ) -> None:
        self._ranks, self._arrays, self._buckets = ranks, arrays, buckets
        self._make_code, self._zero_fill = make_code, zero_fill
        self._n_queued = self._next_unit = 0
        self._is_open = self._is_asking = False
        self.clock = Clock()
        self.spans: dict[int, tuple[float, float]] = {}
        self._flow = Flow(ranks.comm, ranks.timeout)
        self._flow.add(partial(self._open, opening))

    def put(self, i: int, array: Any) -> None:
        """Adds an array. A bucket begins when all its arrays are there."""
        with self._computing():
            self._arrays.put(i, array)
            self._queue()

    def look(self) -> None:
        """Polls messages, and continues as far as they have come."""
        with self._timed():
            self._flow.look()

    def finish(self) -> None:
        """Waits until the mean is in the arrays.

        Raises:
            DisagreementError: If one of the ranks refuses, or they differ.
            StallError: If another rank does not take part in time.
        """
        with self._timed():
            self._flow.finish()

    def check_all_present(self) -> None:
        """Checks, at the end, that no array came from only some of the ranks.

        Raises:
            DisagreementError: On every rank, if one did, and zeros do not stand for it.
        """
        if self._zero_fill:
            return
        both = PRESENT | MISSING
        some = np.flatnonzero((self._coder.flags & both) == both)
        if some.size:
            name = self._arrays.specs[some[0]].name
            here = "has" if self._arrays.are_present[some[0]] else "has not"
            raise DisagreementError(
                f"array {name} is there on some ranks alone; rank"
                f" {self._ranks.comm.rank} {here} it. Give it on all, or let zeros"
                f" stand for it: zero_fill=True"
            )

    def check_all_put(self) -> None:
        """Checks that this rank has put all its arrays, or ``None`` for missing ones.

        Raises:
            RuntimeError: If some are missing.
        """
        arrays = self._arrays
        for spec, flat in zip(arrays.specs, arrays.flat):
            if flat is None:
                raise RuntimeError(
                    f"array {spec.name} has not been put: put all, or None for one that"
                    f" this rank has not"
                )

    def is_finite(self) -> bool:
        """Returns, at the end, whether no number is infinite or NaN."""
        are_coded_finite = not (self._coder.flags & NOT_FINITE).any()
        with self._computing():
            return are_coded_finite and all(
                bool(np.isfinite(self._arrays.flat[i]).all())
                for bucket in self._buckets
                for i in (bucket.arrays if self._code.has_infinity else bucket.exact)
            )

    def results(self) -> list[Any]:
        """Returns the arrays, at the end; ``None`` for one that no rank has put."""
        arrays, flags = self._arrays, self._coder.flags
        results = []
        with self._computing():
            for i, is_there in enumerate(self.are_there()):
                if flags[i] & NOT_FINITE:
                    arrays.flat[i].fill(np.nan)
                results.append(arrays.result(i) if is_there else None)
        return results

    def are_there(self) -> list[bool]:
        """Returns for each array, at the end, whether any rank has put it."""
        # An array without elements has no segments, and so no flags.
        return [
            bool(flag & PRESENT or is_own)
            for flag, is_own in zip(self._coder.flags, self._arrays.are_present)
        ]

    def _open(self, opening: Opening) -> Steps:
        yield from opening.exchange()
        n_samples = opening.check()
        comm = self._ranks.comm
        gradients = Gradients(
            self._arrays.flat,
            self._arrays.are_present,
            shares(n_samples, comm.size)[comm.rank],
        )
        self._code = self._make_code(gradients, n_samples, opening.origins())
        payloads = payloads_of(self._arrays.device)
        self._coder = Coder(self._code, gradients, payloads)
        self._is_open = True
        self._queue()

    def _queue(self) -> None:
        """Begins the next buckets, if their arrays are there."""
        while self._is_open and not self._is_asking and self._has_next():
            bucket = self._buckets[self._n_queued]
            self._n_queued += 1
            own = self._code.prepare(bucket)
            if own is None:
                self._queue_units(bucket)
            else:
                self._is_asking = True
                self._flow.add(partial(self._ask, bucket, own, self._new_unit()))

    def _has_next(self) -> bool:
        if self._n_queued == len(self._buckets):
            return False
        arrays = self._buckets[self._n_queued].arrays
        return all(self._arrays.flat[i] is not None for i in arrays)

    def _new_unit(self) -> int:
        self._next_unit += 1
        return self._next_unit - 1

    def _queue_units(self, bucket: Bucket) -> None:
        about = f"its part of {_name(bucket, self._arrays.specs)}"
        for unit in bucket.units:
            self._flow.add(partial(self._unit, unit, self._new_unit(), about))

    def _unit(self, unit: ExchangeUnit, number: int, about: str) -> Steps:
        ranks = self._ranks
        messages = Messages(ranks.comm, number, ranks.buffers, about)
        lane, now = ranks.lanes[unit.lane], time.perf_counter
        start, _ = self.spans.setdefault(unit.bucket, (now(), now()))
        yield from UnitExchange(
            unit, lane, ranks.placement, self._coder, messages, self.clock
        ).run()
        self.spans[unit.bucket] = start, now()

    def _ask(self, bucket: Bucket, own: np.ndarray, number: int) -> Steps:
        """Finds the maxima over all ranks' numbers, before the bucket is coded."""
        comm = self._ranks.comm
        about = f"its quantiles of {_name(bucket, self._arrays.specs)}"
        messages = Messages(comm, number, self._ranks.buffers, about)
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        received = [messages.receive(OPENING, rank, own.nbytes) for rank in others]
        for rank in others:
            messages.send(OPENING, rank, own.view(np.uint8))
        with kept_at_errors((messages, own)):
            yield [*(pending for _, pending in received), *messages.sent()]
        theirs = [buffer.view(own.dtype) for buffer, _ in received]
        self._code.agree(bucket, np.max([own, *theirs], axis=0))
        messages.end()
        self._is_asking = False
        self._queue_units(bucket)
        self._queue()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Computes on the device of the arrays.

        Flags, or the mean itself, show numbers that are not finite.
        """
        device = self._arrays.device
        with device.create_context(), np.errstate(over="ignore", invalid="ignore"):
            yield

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Counts the time within as that of the wire, except for computations."""
        seconds = self.clock.seconds
        start, before = time.perf_counter(), sum(seconds.values())
        try:
            with self._computing():
                yield
        finally:
            computed = sum(seconds.values()) - before
            seconds["wire"] += time.perf_counter() - start - computed


def compare(opening: Opening) -> None:
    """Checks that all ranks have sent the same opening; a call of all ranks.

    Raises:
        DisagreementError: If the openings differ.
        StallError: If another rank does not call this in time.
    """
    flow = Flow(opening.comm, opening.timeout)
    flow.add(opening.exchange)
    flow.finish()
    opening.check()


def _name(bucket: Bucket, specs: Sequence[Spec]) -> str:
    names = [specs[i].name for i in bucket.arrays]
    some = names if len(names) <= 2 else [names[0], "...", names[-1]]
    return f"bucket {bucket.number} ({', '.join(some)})"
