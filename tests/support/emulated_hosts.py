"""Emulated hosts, for the tests that need some."""

import pytest

from benchmarks.cluster import missing
from tests.support.processes import launcher


def need_emulated_hosts() -> None:
    """Skips a test where hosts cannot be emulated, or MPI is not to be started."""
    launcher()
    reason = missing()
    if reason:
        pytest.skip(f"no hosts can be emulated here: {reason}")
