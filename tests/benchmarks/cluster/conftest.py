"""Hosts for the tests of this folder, or the reason why there are none."""

import pytest

from benchmarks.cluster import cluster
from tests.support.emulated_hosts import need_emulated_hosts


@pytest.fixture(scope="session")
def allowed():
    """Skips a test where hosts cannot be emulated."""
    need_emulated_hosts()


@pytest.fixture(scope="module")
def hosts(allowed):
    """Two hosts, whatever else runs on this machine."""
    with cluster([0.5, 0.4], "1gbit", "256M", overcommit=True) as found:
        yield found
