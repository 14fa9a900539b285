"""Every call of the operating system fails once that a copy in memory makes."""

from pathlib import Path

import pytest

from tests.support import fault_injection
from tests.support.fault_injection import folder_in_memory
from tests.support.mpiexec import assert_on_ranks


def inject(comm, folder, name, every):
    count = getattr(fault_injection, name)(comm, Path(folder), every)
    if comm.rank == 0:
        print(f"{name} on {comm.size} ranks: {count}")
    assert count.injected > 5 and not count.broken, str(count)


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("copies", 79),
        ("loads_of_copies", 97),
        pytest.param("copies", 1, marks=pytest.mark.matrix),
        pytest.param("loads_of_copies", 1, marks=pytest.mark.matrix),
    ],
)
def test_faults(name, every):
    with folder_in_memory() as folder:
        print(assert_on_ranks(2, inject, str(folder), name, every, timeout=300))
