"""Injects faults into saves and loads, and looks whether what is promised holds.

Everything here runs on all ranks of a communicator; the fault is on one of them. Each
function returns how many faults were injected, and what did not hold.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

from pipeline import Snapshot, SnapshotError, latest_snapshot
from tests.support.faulty_files import DIES, KINDS, POWER, TORN, Fault, faulty
from tests.support.small_run import SmallRun

_LASTING = ("EIO", "ENOSPC")
_DEADLY = (DIES, TORN, POWER)


class Count(NamedTuple):
    """How many faults were injected, and a sentence for each of which it did not hold.

    Attributes:
        injected (int): How many.
        broken (tuple of str): The sentences.
    """

    injected: int = 0
    broken: tuple[str, ...] = ()

    def __add__(self, other: Any) -> Count:
        return Count(self.injected + other.injected, self.broken + other.broken)

    def __str__(self) -> str:
        lines = (f"    {each}" for each in self.broken)
        held = self.injected - len(self.broken)
        return "\n".join([f"{self.injected} injected, {held} held", *lines])


class _Outcome(NamedTuple):
    """The outcome of a call on all ranks.

    Attributes:
        result: What the call returned on this rank.
        errors: For each rank the class and the words of its error, or ``None``.
        injected: The calls of the operating system that went wrong.
        warned: What rank 0 warned of.
    """

    result: Any
    errors: list[tuple[str, str] | None]
    injected: list[Any]
    warned: list[str]

    @property
    def has_failed(self) -> bool:
        return any(self.errors)

    def check(self) -> Iterator[str]:
        """Yields what is wrong with its errors."""
        if len(set(self.errors)) > 1:
            yield f"the ranks have other outcomes: {self.errors}"
        for error in filter(None, self.errors[:1]):
            kind, words = error
            if kind not in ("SnapshotError", "UnreadableError"):
                yield f"it is a {kind}: {words}"
            # One that is written aside goes by the name that it is to have.
            paths = [each.path.split(".tmp")[0] for each in self.injected]
            if not any(path in words for path in paths):
                yield f"the error does not name the file: {words}"


def _outcome(
    comm: Any, folder: Path, fault: Fault | None, rank: int, call: Callable[[], Any]
) -> _Outcome:
    result = error = None
    comm.Barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with faulty(folder, fault if comm.rank == rank else None) as files:
            try:
                result = call()
            except Exception as raised:
                error = type(raised).__name__, str(raised)
    errors = comm.allgather(error)
    warned = comm.bcast([str(each.message) for each in caught])
    return _Outcome(result, errors, comm.bcast(files.injected, rank), warned)


def _faults_of(
    comm: Any, folder: Path, rank: int, call: Callable[[], Any], every: int
) -> list[Fault]:
    """Returns faults for every call of the operating system that a call makes.

    Args:
        every: How many of them to take one of.
    """
    comm.Barrier()
    with warnings.catch_warnings(), faulty(folder) as files:
        warnings.simplefilter("ignore")
        call()
    calls = comm.bcast([each.name for each in files.calls], rank)
    faults = [
        Fault(kind, at, lasts)
        for at, name in enumerate(calls)
        for kind, names in KINDS.items()
        for lasts in ([False, True] if kind in _LASTING else [False])
        if name in names and kind not in _DEADLY
    ]
    return faults[::every]


def _copied(comm: Any, base: Path, out: Path) -> None:
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(base, out)
    comm.Barrier()


def _said(comm: Any, what: str, found: list[str], was_injected: bool = True) -> Count:
    """Returns a count of one, the same on all ranks."""
    everyone = [each for theirs in comm.allgather(found) for each in theirs]
    # Where threads look for each other's files, the same call need not come again.
    return Count(was_injected, tuple(f"{what}: {each}" for each in everyone[:1]))


def newest(folder: Path) -> Path | None:
    """Returns the newest complete snapshot, whatever is passed over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return latest_snapshot(folder)


def newest_tag(folder: Path) -> str | None:
    """Returns the tag of the newest complete snapshot."""
    path = newest(folder)
    return None if path is None else Snapshot.open(path).values["tag"]


#: By name how a snapshot is saved, and what it is called: it has a new name, so that an
#: old one is to be removed, or that of an old one; at once, or in the background.
SCENARIOS = {
    "new": ("s_2", {"n_retains": 1}),
    "same": ("s_1", {}),
    "new_later": ("s_2", {"n_retains": 1, "background": True}),
    "same_later": ("s_1", {"background": True}),
}


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Makes a folder in memory, if it can: everything is flushed thousands of times."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def _save(run: SmallRun, out: Path, scenario: str) -> None:
    name, options = SCENARIOS[scenario]
    run.save(out / name, "new", **options)


def saves(comm: Any, folder: Path, every: int = 1) -> Count:
    """Lets each call of the operating system fail that a save makes."""
    run, count = SmallRun(comm), Count()
    base, out = folder / "base", folder / "out"
    run.save(base / "s_1", "old")
    for name in SCENARIOS:

        def save(name: str = name) -> None:
            _save(run, out, name)

        for rank in range(comm.size):
            _copied(comm, base, out)
            for fault in _faults_of(comm, folder, rank, save, every):
                _copied(comm, base, out)
                outcome = _outcome(comm, folder, fault, rank, save)
                found = list(outcome.check())
                tag = newest_tag(out) if comm.rank == 0 else None
                expected = "old" if outcome.has_failed else "new"
                if comm.rank == 0 and tag != expected:
                    found.append(f"the newest is {tag}: {outcome.errors[0]}")
                run.step()
                comm.Barrier()
                found += _goes_on(run, out)
                what = f"saving {name}, rank {rank}, {fault}, {outcome.injected[:1]}"
                count += _said(comm, what, found, bool(outcome.injected))
    return count


def _goes_on(run: SmallRun, out: Path) -> Iterator[str]:
    """Yields why a run does not go on as if nothing had been."""
    try:
        run.save(out / "s_3", "next")
    except SnapshotError as error:
        yield f"the next one cannot be saved: {error}"
    if run.comm.rank == 0 and newest_tag(out) != "next":
        yield f"the newest is {newest_tag(out)} at last"
    run.comm.Barrier()


def copies(comm: Any, folder: Path, every: int = 1) -> Count:
    """Lets each call of the operating system fail that a copy in memory makes.

    Each rank has a host of its own.
    """
    run, count = SmallRun(comm), Count()
    memory = folder / f"host{comm.rank}"
    memory.mkdir()
    run.pipe.copies.open("a run", memory)
    for _ in range(3):
        run.copy("old")
    for rank in range(comm.size):
        for fault in _faults_of(comm, folder, rank, lambda: run.copy("old"), every):
            outcome = _outcome(comm, folder, fault, rank, lambda: run.copy("new"))
            found = list(outcome.check())
            tag, expected = _newest_copy(run), "old" if outcome.has_failed else "new"
            if tag != expected:
                found.append(f"the newest is {tag}: {outcome.errors[0]}")
            run.step()
            try:
                run.copy("old")
                run.copy("old")
            except SnapshotError as error:
                found.append(f"the next one cannot be made: {error}")
            left = len(list(run.pipe.copies.folder.iterdir())) - 1
            if left > 2:
                found.append(f"{left} copies are left")
            what = f"copying, rank {rank}, {fault}, {outcome.injected[:1]}"
            count += _said(comm, what, found, bool(outcome.injected))
    run.pipe.close()
    comm.Barrier()
    left = os.listdir(memory)
    return count + _said(comm, "ending", [f"{left} are left"] if left else [], False)


def _newest_copy(run: SmallRun) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run.pipe.copies.newest()
    return None if found is None else found.snapshot.values["tag"]


def loads_of_copies(comm: Any, folder: Path, every: int = 1) -> Count:
    """Lets each call of the operating system fail that a load from memory makes.

    Rank 0's host has lost its copies, so that rank gets its files from the other one.
    """
    run, count = SmallRun(comm), Count()
    memory = folder / f"host{comm.rank}"
    memory.mkdir()
    run.pipe.copies.open("a run", memory)
    run.copy("old")
    run.step()
    run.copy("new")
    whole = run.arrays()
    if comm.rank == 0 and comm.size > 1:
        for path in run.pipe.copies.folder.glob("copy_*"):
            shutil.rmtree(path)
    for rank in range(comm.size):
        for fault in _faults_of(comm, folder, rank, run.load_copy, every):
            run.change()
            before = run.arrays()
            outcome = _outcome(comm, folder, fault, rank, run.load_copy)
            found = list(outcome.check())
            if outcome.has_failed:
                found += _untouched_or_refused(run, before)
            elif outcome.result != "new" and not outcome.warned:
                found.append(f"{outcome.result} is loaded in silence")
            tag = run.load_copy()
            if tag != "new" or run.arrays() != whole:
                found.append(f"afterwards {tag} is loaded")
            what = f"loading a copy, rank {rank}, {fault}, {outcome.injected[:1]}"
            count += _said(comm, what, found, bool(outcome.injected))
    run.pipe.close()
    return count


def loads(comm: Any, folder: Path, every: int = 1) -> Count:
    """Lets each call of the operating system fail that a load makes."""
    run, count = SmallRun(comm), Count()
    path = folder / "s_1"
    run.save(path, "whole")
    whole = run.arrays()
    for rank in range(comm.size):
        for fault in _faults_of(comm, folder, rank, lambda: run.load(path), every):
            run.change()
            before = run.arrays()
            outcome = _outcome(comm, folder, fault, rank, lambda: run.load(path))
            found = list(outcome.check())
            if outcome.has_failed:
                found += _untouched_or_refused(run, before)
                run.load(path)
            if run.arrays() != whole:
                found.append("it is not what was saved")
            what = f"loading, rank {rank}, {fault}, {outcome.injected[:1]}"
            count += _said(comm, what, found, bool(outcome.injected))
    return count


def _untouched_or_refused(run: SmallRun, before: list[bytes]) -> Iterator[str]:
    """Yields why a run is neither as it was nor refused, if so."""
    is_touched = any(run.comm.allgather(run.arrays() != before))
    try:
        run.evaluate()
        is_refused = False
    except RuntimeError as error:
        is_refused = "load a complete snapshot" in str(error)
    if set(run.comm.allgather(is_refused)) != {is_refused}:
        yield "not all ranks refuse to go on"
    if is_touched and not is_refused:
        yield "it was loaded in part, and goes on"


def resumptions(comm: Any, folder: Path, every: int = 1) -> Count:
    """Lets each call of the operating system fail that resume='auto' makes.

    There is one snapshot, and then an older one besides.
    """
    run, count = SmallRun(comm), Count()
    names = ("s_2", "s_1")
    for name in names:
        out = folder / name
        for saved in reversed(names[: 1 + names.index(name)]):
            run.save(out / saved, saved)
        resume = functools.partial(run.resume, out)
        for rank in range(comm.size):
            for fault in _faults_of(comm, out, rank, resume, every):
                run.change()
                before = run.arrays()
                outcome = _outcome(comm, out, fault, rank, resume)
                found = [*outcome.check(), *_resumed_rightly(outcome)]
                if outcome.has_failed:
                    found += _untouched_or_refused(run, before)
                what = f"resuming, rank {rank}, {fault}, {outcome.injected[:1]}"
                count += _said(comm, what, found, bool(outcome.injected))
                run.load(out / "s_2")
    return count


def _resumed_rightly(outcome: _Outcome) -> Iterator[str]:
    if outcome.has_failed:
        return
    if outcome.result is None:
        yield "it begins anew in silence"
    elif outcome.result == "s_1" and not any("/s_2" in w for w in outcome.warned):
        yield "it goes on from an older one in silence"


def damages(comm: Any, folder: Path, n_places: int) -> Count:
    """Changes and truncates the files of a snapshot at some places each."""
    run, count = SmallRun(comm), Count()
    base, out = folder / "base", folder / "out"
    for name in ("s_1", "s_2"):
        run.save(base / name, name)
    comm.Barrier()
    for name in sorted(os.listdir(base / "s_2")):
        content = (base / "s_2" / name).read_bytes()
        for what, damaged in _damaged(content, n_places):
            if name == "manifest.json" and _says_the_same(damaged, content):
                continue
            _copied(comm, base, out)
            if comm.rank == 0:
                (out / "s_2" / name).write_bytes(damaged)
            run.change()
            before = run.arrays()
            loaded = _outcome(comm, out, None, 0, lambda: run.load(out / "s_2"))
            found = []
            if not loaded.has_failed:
                # A rank does not read what only others need.
                found.append("it is loaded")
            elif run.arrays() != before:
                found.append("it was loaded in part")
            elif f"s_2/{name}" not in loaded.errors[0][1]:
                found.append(f"the error does not name it: {loaded.errors[0]}")
            resumed = _outcome(comm, out, None, 0, lambda: run.resume(out))
            found += _resumed_rightly(resumed)
            if resumed.has_failed or resumed.result != "s_1":
                found.append(f"resumed from {resumed.result}: {resumed.errors}")
            count += _said(comm, f"{name}, {what}", found)
    # What was passed over may be replaced.
    run.save(out / "s_2", "again")
    found = [] if comm.rank or newest_tag(out) == "again" else ["it cannot be replaced"]
    return count + _said(comm, "at last", found)


def _says_the_same(damaged: bytes, content: bytes) -> bool:
    """Whether blanks alone were changed."""
    try:
        return json.loads(damaged) == json.loads(content)
    except ValueError:
        return False


def _damaged(content: bytes, n_places: int) -> Iterator[tuple[str, bytes]]:
    size = len(content)
    for place in sorted({size * i // n_places for i in range(n_places)} | {size - 1}):
        for bit in (0, 6):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield f"bit {bit} of byte {place} of {size}", bytes(changed)
        yield f"truncated to {place} of {size} bytes", content[:place]
        zeros = content[:place] + bytes(min(512, size - place))
        # A block that was never written, as after a loss of power.
        if zeros + content[len(zeros) :] != content:
            yield f"zeros from byte {place}", zeros + content[len(zeros) :]
    yield "a byte more", content + b"\0"


def deaths(comm: Any, folder: Path, every: int = 1) -> Count:
    """Ends a process, forked from this one, at each changing call of a save.

    Args:
        comm: Of one rank.
    """
    run, count = SmallRun(comm), Count()
    base, out = folder / "base", folder / "out"
    run.save(base / "s_1", "old")
    for name in SCENARIOS:
        for fault in deadly_faults(run, base, out, name, every):
            _copied(comm, base, out)
            ends_by_itself = _in_a_fork(save_until_death, run, out, name, fault)
            found = ["nobody died"] if ends_by_itself else []
            tag = newest_tag(out)
            if tag not in ("old", "new"):
                found.append(f"the newest is {tag}")
            if tag is not None:
                run.load(newest(out))
            run.step()
            found += _goes_on(run, out)
            count += _said(comm, f"saving {name}, {fault}", found)
    return count


def deadly_faults(
    run: SmallRun, base: Path, out: Path, name: str, every: int, rank: int = 0
) -> list[Fault]:
    """Returns a fault for each call before which, or within which, a save may end."""
    _copied(run.comm, base, out)
    with faulty(out) as files:
        _save(run, out, name)
    calls = run.comm.bcast([each.name for each in files.calls], rank)
    return [
        Fault(kind, at)
        for at, call in enumerate(calls)
        for kind in _DEADLY
        if call in KINDS[kind]
    ][::every]


def save_until_death(run: SmallRun, out: Path, name: str, fault: Fault | None) -> None:
    """Saves where a fault ends this process."""
    with faulty(out, fault):
        _save(run, out, name)


def _in_a_fork(call: Callable, *args: Any) -> bool:
    """Returns whether a process that makes a call was not killed before its end."""
    with warnings.catch_warnings():
        # From Python 3.12 on it warns of threads, of which the fork needs none.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            call(*args)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
