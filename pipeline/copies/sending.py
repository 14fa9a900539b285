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


def allocate(folder: Path, transfers: Sequence[Transfer], rank: int) -> None:
    """Makes the files that a rank will receive, with all of their memory.

    Raises:
        SnapshotError: If there is no room for a file.
    """
    for each in transfers:
        if each.target == rank:
            path = folder / (each.name + _RECEIVING)
            with naming(path, "make"), open(path, "xb") as file:
                # A full memory is an error now, and not a signal at a write.
                os.posix_fallocate(file.fileno(), 0, each.n_bytes)


class Sending:
    """Files that are under way, from the moment when it is made.

    Args:
        ranks: All ranks of the pipeline.
        transfers: The files of all ranks, in the same order on each of them.
        path_of: Returns the path of a file that this rank sends, by its name.
        folder: Directory of the files that this rank receives, which were allocated.
    """

    def __init__(
        self,
        ranks: Ranks,
        transfers: Sequence[Transfer],
        path_of: Callable[[str], Path],
        folder: Path,
    ) -> None:
        self._ranks, self._folder = ranks, folder
        comm = ranks.world
        self._received = [each for each in transfers if each.target == comm.rank]
        sent = [each for each in transfers if each.source == comm.rank]
        self._requests: dict[int, list[MPI.Request]] = {}
        for each in self._received:
            path = folder / (each.name + _RECEIVING)
            for piece in _pieces(path, "r+"):
                request = comm.Irecv([piece, MPI.BYTE], each.source, FILE_TAG)
                self._requests.setdefault(each.source, []).append(request)
        for each in sent:
            for piece in _pieces(path_of(each.name), "r"):
                request = comm.Isend([piece, MPI.BYTE], each.target, FILE_TAG)
                self._requests.setdefault(each.target, []).append(request)
        self.most_bytes = max((each.n_bytes for each in transfers), default=0)
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
            wait(
                lambda requests=requests: MPI.Request.Testall(requests),
                ranks.timeout,
                lambda peer=peer: f"the copies that rank {peer} sends or takes",
                ranks.watch,
                WaitPlace(ranks.world, peer),
            )
        if self._requests:
            mark_idle(ranks.world)
            _under_way.discard(self)

    def name_files(self) -> None:
        """Gives the received files their names.

        Raises:
            SnapshotError: If the file system refuses.
        """
        for each in self._received:
            path = self._folder / each.name
            with naming(path, "name"):
                os.replace(self._folder / (each.name + _RECEIVING), path)


# MPI uses the memory of their files, also if their pipeline is dropped.
_under_way: set[Sending] = set()


def _pieces(path: Path, mode: str) -> list[np.ndarray]:
    content = np.memmap(path, np.uint8, mode)
    return [
        content[start : start + _PIECE_BYTES]
        for start in range(0, len(content), _PIECE_BYTES)
    ]
