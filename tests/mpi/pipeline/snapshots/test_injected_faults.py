"""Every call of the operating system fails once, on one of two ranks."""

import shutil
from pathlib import Path

import pytest

from tests.support import fault_injection
from tests.support.fault_injection import (
    SCENARIOS,
    Count,
    deadly_faults,
    folder_in_memory,
    newest_tag,
    save_until_death,
)
from tests.support.faulty_files import Fault
from tests.support.mpiexec import assert_on_ranks, on_ranks
from tests.support.small_run import SmallRun


def inject(comm, folder, name, every):
    count = getattr(fault_injection, name)(comm, Path(folder), every)
    if comm.rank == 0:
        print(f"{name} on {comm.size} ranks: {count}")
    assert count.injected > 5 and not count.broken, str(count)


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *[("saves", 107), ("loads", 67), ("resumptions", 199)],
        *[
            pytest.param(name, 1, marks=pytest.mark.matrix)
            for name in ("saves", "loads", "resumptions")
        ],
        pytest.param("damages", 20, marks=pytest.mark.matrix),
    ],
)
def test_faults(name, every):
    with folder_in_memory() as folder:
        print(assert_on_ranks(2, inject, str(folder), name, every, timeout=300))


def prepare(comm, folder):
    """Saves the snapshot of before, and prints the faults to inject, one of three."""
    run, folder = SmallRun(comm), Path(folder)
    run.save(folder / "base" / "s_1", "old")
    for name in SCENARIOS:
        for rank in range(comm.size):
            out = folder / "out"
            for fault in deadly_faults(run, folder / "base", out, name, 3, rank):
                if comm.rank == 0:
                    print(name, rank, fault.at, fault.kind)


def die(comm, folder, name, rank, kind, at):
    fault = Fault(kind, at) if comm.rank == rank else None
    save_until_death(SmallRun(comm), Path(folder, "out"), name, fault)


def go_on(comm, folder):
    """Loads what is there, trains and saves."""
    run, out = SmallRun(comm), Path(folder, "out")
    newest = fault_injection.newest(out) if comm.rank == 0 else None
    run.load(comm.bcast(newest))
    run.step()
    run.save(out / "s_3", "next")


@pytest.mark.matrix
def test_deaths():
    count = Count()
    with folder_in_memory() as folder:
        lines = assert_on_ranks(2, prepare, str(folder)).splitlines()
        for name, rank, at, kind in (line.split(maxsplit=3) for line in lines):
            shutil.rmtree(folder / "out")
            shutil.copytree(folder / "base", folder / "out")
            what = f"saving {name}, {kind} at call {at} of rank {rank}"
            result = on_ranks(2, die, str(folder), name, int(rank), kind, int(at))
            tag, found = newest_tag(folder / "out"), ()
            if result.returncode == 0 and name.endswith("_later"):
                # How often a thread looks whether the other rank has written depends on
                # how fast that is: there was no such call.
                assert tag == "new", what
                continue
            if result.returncode == 0:
                found = (f"{what}: nobody died",)
            elif tag not in ("old", "new"):
                found = (f"{what}: the newest is {tag}",)
            else:
                assert_on_ranks(2, go_on, str(folder))
                if newest_tag(folder / "out") != "next":
                    found = (f"{what}: it does not go on",)
            count += Count(1, found)
    print(f"deaths on 2 ranks: {count}")
    assert count.injected > 50 and not count.broken, str(count)
