"""Finds the newest copy of which each file is somewhere, and brings hosts their files.

::

    files       host a         host b (lost)   host c
    stage-0     own                            .
    stage-1     .              own             of its partner
    stage-2     of its partner                 own             --> whole

The files are found by the checksum of their manifest, so that copies of different runs
and of different moments never mix.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from pipeline.between_steps import BetweenSteps
from pipeline.copies.places import LOADED, Home, copies_in
from pipeline.copies.sending import Sending, Transfer
from pipeline.snapshots.errors import SnapshotError, naming, on_all_ranks
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import age

#: Folders that have a file, by the file's name.
_Folders = dict[str, list[str]]


@dataclass(frozen=True)
class Found:
    """A copy, and the places where its files are.

    Attributes:
        snapshot: The copy, as its manifest describes it.
        folders: For each place the folders that have a file, by the file's name.
    """

    snapshot: Snapshot
    folders: Mapping[str, _Folders]

    @property
    def lost(self) -> list[str]:
        """Names of files that are nowhere."""
        here = {name for each in self.folders.values() for name in each}
        return sorted(set(self.snapshot.files) - here)


def newest(
    pipeline: BetweenSteps, home: Home, warn: Callable[[str], None]
) -> Found | None:
    """Returns the newest copy whose files are all somewhere, with right checksums.

    All ranks must call it.

    Args:
        pipeline: The pipeline.
        home: The folders of the run's copies.
        warn: Called on rank 0 with a sentence about each copy that is skipped.
    """
    what = "cannot look for copies in memory"
    mine = on_all_ranks(pipeline, "load", what, _look, home)
    everyone, remarks = zip(*pipeline.internals.gather(mine, "load"))
    for each in [each for theirs in remarks for each in theirs]:
        warn(f"a part of a copy in memory is passed over: {each}")
    for found in _candidates(home.places, everyone):
        if found.lost:
            warn(_skipped(found, "on no host", found.lost))
            continue
        whole, damaged = _verified(pipeline, home, found)
        if not whole.lost:
            return whole
        warn(_skipped(whole, "damaged", whole.lost, damaged))
    return None


def _skipped(
    found: Found, why: str, lost: Sequence[str], damaged: Sequence[str] = ()
) -> str:
    snapshot, details = found.snapshot, "".join(f"; {each}" for each in damaged[:2])
    return (
        f"the copy in memory after {snapshot.n_steps} minibatches is passed over:"
        f" {', '.join(lost[:4])} {'are' if len(lost) > 1 else 'is'} {why}{details}"
    )


def _look(home: Home) -> tuple[list[tuple[Snapshot, dict[str, str]]], list[str]]:
    """Returns the parts of copies in this rank's place, if it is the first there.

    Each part is a manifest, and the folders of its files with the right sizes. There is
    a sentence for each part whose manifest cannot be read.
    """
    parts, remarks = [], []
    for folder in copies_in(home.run_folder) if home.is_first else ():
        try:
            snapshot = Snapshot.open(folder)
        except SnapshotError as error:
            remarks.append(str(error))
            continue
        here = {
            name: str(folder)
            for name, entry in snapshot.files.items()
            if _size(folder / name) == entry["bytes"]
        }
        parts.append((snapshot, here))
    return parts, remarks


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _candidates(
    places: Sequence[str],
    everyone: Sequence[Sequence[tuple[Snapshot, Mapping[str, str]]]],
) -> list[Found]:
    """Returns the copies of which some part was found, the newest first."""
    found: dict[str, Found] = {}
    for place, parts in zip(places, everyone):
        for snapshot, here in parts:
            copy = found.setdefault(snapshot.checksum, Found(snapshot, {}))
            folders = copy.folders.setdefault(place, {})
            for name, folder in here.items():
                folders.setdefault(name, []).append(folder)
    return sorted(found.values(), key=lambda each: age(each.snapshot), reverse=True)


def _verified(
    pipeline: BetweenSteps, home: Home, found: Found
) -> tuple[Found, list[str]]:
    """Returns a copy without damaged files, and a sentence about each of these.

    The ranks of a place share the work.
    """
    place = home.places[home.rank]
    ranks_here = [rank for rank, each in enumerate(home.places) if each == place]
    files = [
        (name, folder)
        for name, folders in sorted(found.folders.get(place, {}).items())
        for folder in folders
    ]
    good, damaged = [], []
    for name, folder in files[ranks_here.index(home.rank) :: len(ranks_here)]:
        try:
            replace(found.snapshot, path=Path(folder)).check_sums([name])
            good.append((name, folder))
        except SnapshotError as error:
            damaged.append(str(error))
    said = pipeline.internals.gather((good, damaged), "load")
    verified: dict[str, _Folders] = {}
    for each, (theirs, _) in zip(home.places, said):
        for name, folder in theirs:
            verified.setdefault(each, {}).setdefault(name, []).append(folder)
    words = [each for _, theirs in said for each in theirs]
    return Found(found.snapshot, verified), words


def transfers_to(
    needs: Sequence[Sequence[str]], places: Sequence[str], found: Found
) -> list[Transfer]:
    """Returns the files that ranks need and that their places lack.

    The ranks of a place that has a file send it in turn.

    Args:
        needs: Names of the files that each rank needs.
        places: Place of each rank.
        found: The copy.
    """
    transfers = []
    for target, names in enumerate(needs):
        for name in names:
            if name in found.folders.get(places[target], {}):
                continue
            sources = [
                rank
                for rank, place in enumerate(places)
                if name in found.folders.get(place, {})
            ]
            source = sources[len(transfers) % len(sources)]
            n_bytes = found.snapshot.files[name]["bytes"]
            transfers.append(Transfer(name, n_bytes, source, target))
    return transfers


@contextlib.contextmanager
def gathered(
    pipeline: BetweenSteps, home: Home, found: Found, names: Sequence[str], what: str
) -> Iterator[Path]:
    """Opens a block with a folder of the files that this rank needs.

    All ranks must open it. Files of this host are linked, and take no memory.

    Args:
        pipeline: The pipeline.
        home: The folders of the run's copies.
        found: A copy of which each file is somewhere.
        names: Names of the files.
        what: Beginning of errors.
    """
    needs = pipeline.internals.gather(list(names), "load")
    transfers = transfers_to(needs, home.places, found)
    # The folder of a load before is still there if it could not be removed.
    folder = home.folder / f"{LOADED}{secrets.token_hex(4)}"
    here = found.folders.get(home.places[home.rank], {})
    linked = {name: Path(here[name][0], name) for name in names if name in here}

    def prepare() -> Sending:
        with naming(folder, "make"):
            folder.mkdir()
        replace(found.snapshot, path=folder).write_manifest()
        for name, path in linked.items():
            with naming(folder / name, "make"):
                os.link(path, folder / name)
        return Sending(ranks, transfers, lambda name: Path(here[name][0], name), folder)

    ranks = pipeline.internals.ranks
    try:
        sending = on_all_ranks(pipeline, "load", what, prepare)
        with ranks.calls.guarded():
            sending.start()
            sending.wait()
        on_all_ranks(pipeline, "load", what, sending.name_files)
        yield folder
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
