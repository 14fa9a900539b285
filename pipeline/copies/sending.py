"""Files that are under way between ranks while these compute.

Messages go from the memory of one file into that of another, without a buffer between
them. The files in memory are mapped, and MPI continues whenever a rank polls for the
messages of its step::

    source   posts sends .... step .... finished
    target   makes the file, posts receives .... step .... finished, names the file
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from mpi4py import MPI

from divisible.communication.busy import mark_busy, mark_idle
from divisible.communication.tags import FILE_TAG
from divisible.communication.wait_queries import WaitPlace
from divisible.communication.waiting import wait
from pipeline.calls.ranks import Ranks
from pipeline.snapshots.errors import naming

# A message must be shorter than 2 GiB.
_PIECE_BYTES = 1 << 26
_RECEIVING = ".receiving"


class Transfer(NamedTuple):
    """A file that one rank sends to another.

    Attributes:
        name: Name of the file.
        n_bytes: Bytes of the file.
        source: Rank in the world that has it.
        target: Rank in the world that receives it.
    """

    name: str
    n_bytes: int
    source: int
    target: int


class Sending:
    """Files that are under way, from :meth:`start` until :meth:`wait` has ended.

    What may fail on one rank alone is done when it is made: files to receive get all of
    their memory, and all files are mapped.

    Args:
        ranks: All ranks of the pipeline.
        transfers: The files of all ranks, in the same order on each of them.
        path_of: Returns the path of a file that this rank sends, by its name.
        folder: Directory for the files that this rank receives.

    Raises:
        SnapshotError: If there is no room for a file, or a file cannot be read.
    """

    def __init__(
        self,
        ranks: Ranks,
        transfers: Sequence[Transfer],
        path_of: Callable[[str], Path],
        folder: Path,
    ) -> None:
        self._ranks, self._folder = ranks, folder
        rank = ranks.world.rank
        self._received = [each for each in transfers if each.target == rank]
        self.most_bytes = max((each.n_bytes for each in transfers), default=0)
        # Pieces of files, each with the rank that sends or takes it.
        self._incoming = [
            (each.source, _pieces(_allocated(self._aside(each), each.n_bytes), "r+"))
            for each in self._received
        ]
        self._outgoing = [
            (each.target, _pieces(path_of(each.name), "r"))
            for each in transfers
            if each.source == rank
        ]
        self._requests: dict[int, list[MPI.Request]] = {}

    def start(self) -> None:
        """Begins to send and to receive."""
        comm = self._ranks.world
        for post, files in (
            (comm.Irecv, self._incoming),
            (comm.Isend, self._outgoing),
        ):
            for peer, pieces in files:
                requests = [post([each, MPI.BYTE], peer, FILE_TAG) for each in pieces]
                self._requests.setdefault(peer, []).extend(requests)
        if self._requests:
            mark_busy(comm)
            _under_way.add(self)

    def wait(self) -> None:
        """Waits until all files of this rank have arrived.

        Raises:
            StallError: If another rank does not answer in time.
        """
        ranks = self._ranks
        for peer, requests in self._requests.items():
            place = WaitPlace(ranks.world, peer)
            # Each piece has a deadline of its own: all may take long on a slow link.
            for request in requests:
                wait(
                    lambda request=request: request.Test(),
                    ranks.timeout,
                    lambda peer=peer: f"the copies that rank {peer} sends or takes",
                    ranks.watch,
                    place,
                )
        if self._requests:
            mark_idle(ranks.world)
            _under_way.discard(self)
        self._incoming, self._outgoing = [], []

    def name_files(self) -> None:
        """Gives the received files their names.

        Raises:
            SnapshotError: If the file system refuses.
        """
        for each in self._received:
            path = self._folder / each.name
            with naming(path, "name"):
                os.replace(self._aside(each), path)

    def _aside(self, transfer: Transfer) -> Path:
        return self._folder / (transfer.name + _RECEIVING)


# MPI uses the memory of their files, also if their pipeline is dropped.
_under_way: set[Sending] = set()


def _allocated(path: Path, n_bytes: int) -> Path:
    """Makes a file with all of its memory, and returns its path."""
    with naming(path, "make"), open(path, "xb") as file:
        # A full memory is an error now, and not a signal at a write.
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    return path


def _pieces(path: Path, mode: str) -> list[np.ndarray]:
    with naming(path, "map"):
        content = np.memmap(path, np.uint8, mode)
    return [
        content[start : start + _PIECE_BYTES]
        for start in range(0, len(content), _PIECE_BYTES)
    ]
