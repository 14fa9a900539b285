"""Supervisors of programs without MPI; ``tests/mpi`` has those of trainings."""

import os
import time

import pytest

from divisible.communication import flight_files
from divisible.communication.flight_record import FlightRecord
from divisible.communication.flight_search import newest_job
from pipeline.supervision.budget import Budget
from pipeline.supervision.supervisor import Supervisor


@pytest.fixture
def leaves(tmp_path):
    """A program that leaves a flight record, and ends with a code."""
    (tmp_path / "record").write_bytes(FlightRecord()._memory)

    def command(code):
        folder = f"${flight_files.VARIABLE}/job"
        copy = f"mkdir {folder} && cp {tmp_path}/record {folder}/rank-0.flight"
        return ["sh", "-c", f"{copy}; exit {code}"]

    return command


@pytest.mark.parametrize("code, is_left", [(3, True), (75, False), (0, False)])
def test_records_of_a_lost_start_can_be_read_later(
    tmp_path, monkeypatch, leaves, code, is_left
):
    given = tmp_path / "new" / "folder"
    monkeypatch.setenv(flight_files.VARIABLE, str(given))
    assert Supervisor(leaves(code), 1, Budget(0)).run() == code
    assert len(list(given.iterdir())) == is_left
    if is_left:
        assert len(flight_files.logs(newest_job())) == 1


def test_old_records_of_supervisors_go(tmp_path, monkeypatch, leaves):
    monkeypatch.delenv(flight_files.VARIABLE, raising=False)
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    Supervisor(leaves(3), 1, Budget(0)).run()
    (job,) = (tmp_path / f"divisible-{os.getuid()}").glob("supervised-*/job")
    then = time.time() - 8 * 24 * 3600
    (file,) = job.iterdir()
    os.utime(file, (then, then))
    monkeypatch.setattr(flight_files, "is_running", lambda log: False)
    Supervisor(leaves(0), 1, Budget(0)).run()
    assert not job.exists()


def test_the_run_goes_on_without_flight_records(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "file" / "folder"))
    assert Supervisor(["sh", "-c", "exit 75"], 1, Budget()).run() == 75
    assert "leave no flight records" in capfd.readouterr().err
    # A long run may outlive its files.
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    command = ["sh", "-c", f"rmdir ${flight_files.VARIABLE}; exit 3"]
    assert Supervisor(command, 1, Budget(0)).run() == 3
