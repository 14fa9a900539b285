"""Numbers of other ranks for which this rank waits only when it reads them.

Every rank begins to exchange them at the same place among its calls. After that, each
rank reads them when it likes: a read waits for messages, and needs no call of the other
ranks::

    rank 1   ... ends its part, sends ------.
    rank 0   ... begins to receive   goes on '--> reads: no wait
    rank 2   ... begins to receive   reads: waits

Numbers that nobody reads are under way until :func:`read_all`, which every call but
a step begins with, or until the script ends: MPI must not end before its messages. If
they cannot be read then, all ranks end with the error.
"""

from __future__ import annotations

import sys
from typing import Callable, Protocol

import numpy as np
from mpi4py import MPI

from divisible.communication.aborting import end_all_ranks
from divisible.communication.leaving import at_end
from pipeline.calls.call_agreement import CallAgreement


class Operation(Protocol):
    """An operation of several ranks that has begun."""

    def test(self) -> bool:
        """Returns whether the operation is complete."""

    def finish(self, timeout: float, watch: Callable[[], None] | None) -> None:
        """Waits until the operation is complete."""


class LateNumbers:
    """Numbers that an operation of the ranks fills in.

    Args:
        calls (CallAgreement): The calls of the ranks; numbers that are late are read
            before the next call that is no step.
        numbers (numpy.ndarray): The numbers, once the operation is complete.
        operation: The operation; ``None`` if the numbers are known already.
        timeout (float): Seconds that a read may wait.
        watch: Called while a read waits; may raise an error to end the wait.
    """

    def __init__(
        self,
        calls: CallAgreement,
        numbers: np.ndarray,
        operation: Operation | None = None,
        timeout: float = 0.0,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.calls, self._numbers, self._operation = calls, numbers, operation
        self._timeout, self._watch = timeout, watch
        if operation is not None:
            # MPI writes into the numbers, also if nobody refers to them any more.
            _under_way[self] = None

    def read(self) -> np.ndarray:
        """Returns the numbers, and waits for them if they have not come yet.

        Raises:
            StallError: If another rank does not answer in time, or has ended its
                script.
            RuntimeError: If a call has failed on this rank before the numbers came.
        """
        operation = self._operation
        if operation is not None:
            if not operation.test():
                with self.calls.awaiting():
                    operation.finish(self._timeout, self._watch)
            self._operation = None
            del _under_way[self]
        return self._numbers


# A dict, because the order of the operations is that of their messages.
_under_way: dict[LateNumbers, None] = {}


def read_all(calls: CallAgreement) -> None:
    """Reads all numbers that are under way.

    Args:
        calls (CallAgreement): The calls of the pipeline.

    Raises:
        StallError, RuntimeError: See :meth:`LateNumbers.read`.
    """
    for late in [late for late in _under_way if late.calls is calls]:
        late.read()


@at_end
def _read_at_end() -> None:
    """Reads what is under way when the script ends, unless a call has failed."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    try:
        for late in [*_under_way]:
            if not late.calls.has_failed:
                late.read()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        end_all_ranks("failed at its end", lambda: sys.stderr.write(text))
