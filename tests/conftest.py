"""Settings for all tests."""

import contextlib

import pytest
from hypothesis import settings

from tests.support.mpiexec import left_behind

# Whether a change lands must not depend on luck: property tests try the same examples
# in each run. "make test-all" draws new ones.
settings.register_profile("same_examples", derandomize=True)
settings.load_profile("same_examples")


@pytest.fixture(autouse=True, scope="session")
def _no_memory_left_behind():
    """Frees the memory that killed ranks shared: each time some MiB, until a reboot."""
    before = left_behind()
    yield
    for file in left_behind() - before:
        # Some may be another user's.
        with contextlib.suppress(OSError):
            file.unlink()
