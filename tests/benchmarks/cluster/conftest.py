"""Hosts for the tests of this folder, or the reason why there are none."""

import pytest

from benchmarks.cluster import cluster, missing
from tests.support.processes import launcher


@pytest.fixture(scope="session")
def allowed():
    """Skips a test where hosts cannot be emulated, or MPI is not to be started."""
    launcher()
    reason = missing()
    if reason:
        pytest.skip(f"no hosts can be emulated here: {reason}")


@pytest.fixture(scope="module")
def hosts(allowed):
    """Two hosts, whatever else runs on this machine."""
    with cluster([0.5, 0.4], "1gbit", "256M", overcommit=True) as found:
        yield found
