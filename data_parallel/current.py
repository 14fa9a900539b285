"""The exchange that is under way, of which there is one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpi4py import MPI

from data_parallel.under_way import UnderWay
from divisible.communication.busy import free, mark_busy, mark_idle, mark_left
from divisible.communication.errors import DisagreementError
from divisible.communication.exit_notices import exit_notices

_ADVICE = (
    "All ranks must make the same exchanges: in training give each one as many"
    " minibatches, as chainermn.scatter_dataset does by its default"
)


class Current:
    """The exchange that has begun, if one has.

    ::

        begin ---> under way ---> over
                       |
                       +-- disagreement, which all ranks know: over
                       +-- another error: broken, for messages may still come

    Args:
        comm: Communicator of the exchanges.

    Attributes:
        under_way: The exchange; ``None`` if none has begun.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._under_way: UnderWay | None = None
        self._comm = comm
        self._is_broken = False
        self._exit_notices = exit_notices(comm)
        self._exit_notices.advice = _ADVICE

    @property
    def under_way(self) -> UnderWay | None:
        """The exchange."""
        return self._under_way

    def begin(self, exchange: UnderWay) -> None:
        """Records that an exchange has begun. Its communicator is busy until `end`."""
        self._under_way = exchange
        mark_busy(self._comm)
        self._exit_notices.begin()
        # Until this rank waits for the exchange, other waits ignore ranks that left.
        self._exit_notices.leave_off()

    def end(self) -> None:
        """Records that the exchange is over."""
        self._under_way = None
        mark_idle(self._comm)
        self._exit_notices.finish()

    def check_idle(self) -> None:
        """Checks that an exchange may begin.

        Raises:
            RuntimeError: If it may not begin.
        """
        self.check_over("begin another")
        if self._is_broken:
            raise RuntimeError(
                "an exchange has ended in the middle, with an error, and messages of it"
                " may still come: make another Exchange, on all ranks"
            )
        if not self._comm:
            raise RuntimeError("the exchange is closed: make another one")

    def check_over(self, purpose: str) -> None:
        """Checks that no exchange is under way.

        Raises:
            RuntimeError: If one is; the message has the purpose.
        """
        if self.under_way is not None:
            raise RuntimeError(
                f"an exchange has begun already: finish it before you {purpose}"
            )

    def running(self) -> UnderWay:
        """Returns the exchange that has begun.

        Raises:
            RuntimeError: If none has.
        """
        if self.under_way is None:
            raise RuntimeError("no exchange has begun: call start() first")
        return self.under_way

    @contextlib.contextmanager
    def ending_at_errors(self) -> Iterator[None]:
        """Ends the exchange if an error is raised within.

        This rank may wait for others only within. Other waits during an exchange must
        ignore ranks that have left.
        """
        if self._under_way is not None:
            self._exit_notices.resume()
        try:
            yield
        except DisagreementError:
            # The ranks disagreed before any gradient was sent.
            self.end()
            raise
        except BaseException:
            self._under_way = None
            mark_idle(self._comm)
            self._is_broken = True
            mark_left(self._comm)
            raise
        finally:
            self._exit_notices.leave_off()

    def free(self) -> None:
        """Frees the communicator; a call of all ranks.

        Raises:
            RuntimeError: If an exchange has begun and is not finished.
        """
        self.check_over("close it")
        # After an error the communicator stays, because other ranks may not call this.
        free(self._comm)
