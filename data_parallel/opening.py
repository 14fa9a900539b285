"""The opening of an exchange: one small message from each rank to each.

The message describes the arrays and settings of the exchange, and has the number of
samples of the gradients. A rank whose arguments are wrong sends a refusal instead.
Then no gradient is sent, and all ranks raise an error with the reason.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from data_parallel.messages import OPENING, Pending
from data_parallel.settings import check_integer
from divisible.communication.agreement import first_difference
from divisible.communication.attempts import refuse_together
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError
from divisible.communication.waiting import kept_at_errors

#: Number of samples of a rank whose minibatch is like those of all others.
ALIKE = -1


@functools.lru_cache(maxsize=16)
def checksum(value: Any) -> int:
    """Returns a checksum of 63 bits of the ``repr`` of a value."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def check_n_samples(n_samples: int | None) -> None:
    """Checks that a value can be a number of samples.

    Raises:
        TypeError, ValueError: If it cannot.
    """
    if n_samples is not None:
        check_integer("n_samples", n_samples, 0)


def check_any_samples(n_samples: int) -> None:
    """Checks that the minibatches of all ranks together have samples.

    Raises:
        DisagreementError: If they have none.
    """
    if not n_samples:
        raise DisagreementError(
            "n_samples is 0 on all ranks: there is nothing to average"
        )


class Opening:
    """The opening of one exchange.

    Args:
        comm: Communicator of the exchange.
        number: Number of the exchange, equal on ranks that are at the same one.
        summary: A description of the arrays, line by line, that must be equal.
        n_samples: Number of samples of this rank's minibatch; ``None`` if all ranks
            have the same number.
        refusal: The error of this rank; empty if there is none.
        origin: Origin of this rank's residuals.
        timeout: Seconds to wait for the others after an error.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        number: int,
        summary: Sequence[str],
        n_samples: int | None,
        refusal: str,
        origin: tuple[int, int],
        timeout: float,
    ) -> None:
        self.comm, self.timeout = comm, timeout
        self._summary, self._refusal = summary, refusal
        said = ALIKE if n_samples is None else n_samples
        fields = number, checksum(tuple(summary)), said, bool(refusal), *origin
        self._own = np.array(fields, np.int64)
        self._all = np.tile(self._own, (comm.size, 1))

    def exchange(self) -> Generator[list[Pending], None, None]:
        """Yields the messages for which this rank waits."""
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        pending = [
            Pending(
                self.comm.Irecv(self._all[rank], rank, OPENING),
                rank,
                f"rank {rank} to begin the exchange",
            )
            for rank in others
        ]
        for rank in others:
            request = self.comm.Isend(self._own, rank, OPENING)
            pending.append(
                Pending(request, rank, f"rank {rank} to take part in the exchange")
            )
        with kept_at_errors(self):
            yield pending

    def check(self) -> list[int] | None:
        """Returns the ranks' numbers of samples; ``None`` if all are alike.

        Raises:
            DisagreementError: On all ranks, if one of them refuses, or they differ.
        """
        numbers, checksums, samples, refused = self._all.T[:4]
        if refused.any():
            said = all_gather(self.comm, self._refusal, self.timeout, "to refuse")
            refuse_together(said)
        if len(set(checksums)) > 1:
            said = all_gather(self.comm, self._summary, self.timeout, "to compare")
            raise DisagreementError(
                f"{first_difference(said)}. All ranks must have the same model and the"
                f" same settings, make the same calls, and load the same snapshot"
            )
        if len(set(numbers)) > 1:
            raise DisagreementError(
                f"ranks are at different exchanges, by rank: {numbers.tolist()}: all"
                f" must make the same calls, and load the same snapshot"
            )
        if (samples == ALIKE).all():
            return None
        if (samples == ALIKE).any():
            rank = int(np.argmax(samples == ALIKE))
            raise DisagreementError(
                f"n_samples is given on some ranks, and not on rank {rank}: give it on"
                f" all or on none"
            )
        check_any_samples(samples.sum())
        return samples.tolist()

    def origins(self) -> list[tuple[int, int]]:
        """Returns the origins of all ranks' residuals."""
        return [(n, rank) for n, rank in self._all[:, 4:].tolist()]
