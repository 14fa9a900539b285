"""The newest job, and the record of a process, are found."""

import os
import subprocess

import pytest

from divisible.communication import flight_files
from divisible.communication.flight_search import newest_job, of_process
from tests.divisible.communication.test_flight_files import make_job


@pytest.fixture
def own(tmp_path, monkeypatch):
    """This user's directory of jobs, which is not there yet."""
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(flight_files.VARIABLE, raising=False)
    return tmp_path / f"divisible-{os.getuid()}"


@pytest.fixture
def ended():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("is_given", [True, False])
def test_the_newest_job_is_the_last_one_of_which_some_process_has_ended(
    own, ended, monkeypatch, is_given
):
    if is_given:
        monkeypatch.setenv(flight_files.VARIABLE, str(own))
    with pytest.raises(ValueError, match="no flight records of yours on this host. A"):
        newest_job()
    assert not own.exists()
    own.mkdir(mode=0o700)
    for name, process in [("b", ended), ("a", ended), ("c", os.getpid())]:
        make_job(own / name, process, 0, text=name)
    assert newest_job() == own / "a"


def test_records_that_another_user_may_have_made_are_not_shown(own, ended):
    make_job(own / "job", ended, 0)
    own.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write to"):
        newest_job()
    assert of_process(ended) is None


def test_a_process_has_the_newest_record_with_its_number(own, ended):
    assert of_process(ended) is None
    own.mkdir(mode=0o700)
    make_job(own / "a", ended, 0)
    make_job(own / "b", ended, 0)
    make_job(own / "c", os.getpid(), 0)
    os.utime(own / "b", (1e9, 1e9))
    assert of_process(ended) == own / "a" / "rank-0.flight"
