"""Settings for all tests."""

import contextlib
import gc
import os
import signal
import sys
import tempfile

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from divisible.communication.flight_files import VARIABLE
from tests.support.examples import SHARE
from tests.support.loaded_python import close_loaded_python
from tests.support.processes import ROOT, Launching, left_behind
from tests.support.ranks import close_shared_ranks
from tests.support.stops import forget_stops

# Whether a change lands must depend neither on luck nor on what else the machine does:
# property tests try the same examples in each run, and none looks at a clock.
# "make test-all" draws new examples, and four times as many.
settings.register_profile(
    "new_examples", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "same_examples",
    settings.get_profile("new_examples"),
    derandomize=True,
    max_examples=100 // SHARE,
)
settings.load_profile("same_examples")

# Python starts in hundreds of tests, each of which would compile every module of the
# checkout.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_MEMORY_BEFORE = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="skip what is slow or starts mpiexec"
    )


def pytest_configure(config):
    Launching.is_allowed = not config.getoption("--quick")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--quick"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow"))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Searches no docstrings of modules here for examples where there is none."""
    found = yield
    if file_path.suffix != ".py" or b">>>" in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_collection_finish(session):
    # What thousands of tests are made of need not be searched by each `gc.collect`.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """Undoes what a shell does to background jobs: tests interrupt programs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _no_flight_records_left_behind():
    """Lets ranks that fail leave theirs where they are removed with the tests."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        yield
        del os.environ[VARIABLE]


@pytest.fixture(autouse=True, scope="session")
def _no_folders_left_behind():
    """Sees that no test lets a trainer make its folder in the checkout."""
    before = _empty_folders()
    yield
    left = _empty_folders() - before
    assert not left, f"a test has made {left} in {ROOT}: give it tmp_path or os.devnull"


@pytest.fixture(autouse=True)
def _as_if_first():
    """Restores the path of modules after a test, and forgets stops of trainings."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    forget_stops()


def _empty_folders():
    folders = (path for path in ROOT.iterdir() if path.is_dir())
    return {path.name for path in folders if not any(path.iterdir())}


@pytest.fixture(autouse=True, scope="session")
def _no_ranks_left_behind():
    """Ends the ranks that wait for tests, and the process that starts others."""
    yield
    close_shared_ranks()
    close_loaded_python()


def pytest_sessionstart(session):
    session.config.stash[_MEMORY_BEFORE] = left_behind()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    # Frees the memory that killed ranks shared: each time some MiB, until a reboot. One
    # of several processes that test cannot know whose memory another one's ranks share.
    if hasattr(session.config, "workerinput"):
        return
    for file in left_behind() - session.config.stash[_MEMORY_BEFORE]:
        # Some may be another user's.
        with contextlib.suppress(OSError):
            file.unlink()
