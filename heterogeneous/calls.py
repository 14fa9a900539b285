"""The calls of a network on several ranks, compared before their messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.agreement import first_difference
from divisible.communication.attempts import refuse_together
from divisible.communication.busy import free, mark_left
from divisible.communication.collectives import all_gather, wait_for_all
from divisible.communication.errors import DisagreementError
from divisible.communication.exit_notices import exit_notices
from divisible.communication.waiting import kept_at_errors


class Calls:
    """Counts the calls of a rank, and compares each with those of the other ranks.

    Each call begins with two numbers from every rank to all: a hash of the call, and
    whether the rank refuses it. They travel while this rank computes. Only when the
    hashes differ, or a rank refuses its arguments, do the ranks exchange their
    descriptions.

    Args:
        comm: Communicator of the ranks.
        timeout: Seconds to wait for the other ranks.
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self._n_calls = 0
        self._is_broken = self._is_closed = False
        self._exit_notices = exit_notices(comm)
        self._begun: _Begun | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuses calls after a call that failed in the middle.

        Raises:
            RuntimeError: If an earlier call failed, or the network is closed.
        """
        if self._is_closed:
            raise RuntimeError("this network is closed: make a new one on all ranks")
        if self._is_broken:
            raise RuntimeError(
                f"an earlier call failed on rank {self._comm.rank}, so the ranks'"
                f" messages are out of step: make a new network on all ranks"
            )
        self._is_broken = True
        self._exit_notices.begin()
        try:
            yield
        except (Refused, DisagreementError) as error:
            # All ranks have raised, and no message is under way.
            self._is_broken = False
            self._exit_notices.finish()
            if isinstance(error, Refused):
                raise error.reason from None
            raise
        except BaseException:
            self._exit_notices.leave_off()
            mark_left(self._comm)
            raise
        self._exit_notices.finish()
        self._is_broken = False

    def close(self) -> None:
        """Frees the communicator; a call of all ranks."""
        # After an error the communicator stays: other ranks may not call this.
        free(self._comm)
        self._is_closed = True

    def begin(self, name: str, words: Sequence[str], refusal: Exception | None) -> None:
        """Begins to compare a call; finishes the comparison where the call is refused.

        Args:
            name: Name of the call.
            words: Descriptions that must be the same on all ranks.
            refusal: Error in this rank's arguments; ``None`` without one.

        Raises:
            Refused: If ``refusal`` is given.
        """
        self._n_calls += 1
        words = [f"call {self._n_calls}, {name}", *words]
        digest = hashlib.blake2b("\n".join(words).encode(), digest_size=7)
        number = int.from_bytes(digest.digest(), "little")
        mine = np.array([number, refusal is not None], np.int64)
        everyones = np.empty((self._comm.size, 2), np.int64)
        request = self._comm.Iallgather(mine, everyones)
        self._begun = _Begun(name, words, refusal, mine, everyones, request)
        if refusal is not None:
            self.finish()

    def finish(self) -> None:
        """Waits for the other ranks' numbers, and compares them.

        Raises:
            DisagreementError: If the calls differ, or another rank refuses its call.
            Refused: If this rank refuses its call.
            StallError: If another rank does not come.
        """
        begun, self._begun = self._begun, None
        comm, purpose = self._comm, f"to call {begun.name}"
        with kept_at_errors((begun.mine, begun.everyones)):
            wait_for_all(comm, begun.request, self._timeout, purpose)
        numbers, refused = begun.everyones.T
        if refused.any():
            words, own = "", None
            if begun.refusal is not None:
                own = Refused(begun.refusal)
                words = str(own) or type(begun.refusal).__name__
            refuse_together(all_gather(comm, words, self._timeout, purpose), own)
        if (numbers != numbers[0]).any():
            said = all_gather(comm, begun.words, self._timeout, purpose)
            raise DisagreementError(first_difference(said))


class _Begun(NamedTuple):
    """A call whose comparison is under way.

    Attributes:
        name: Name of the call.
        words: Descriptions that must be the same on all ranks.
        refusal: Error in this rank's arguments; ``None`` without one.
        mine: Numbers that this rank sends.
        everyones: Buffer that receives the numbers of all ranks.
        request: Request of the messages.
    """

    name: str
    words: Sequence[str]
    refusal: Exception | None
    mine: np.ndarray
    everyones: np.ndarray
    request: MPI.Request


class Refused(Exception):
    """A call that its own rank has refused.

    Args:
        reason: The error that the user sees.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason
