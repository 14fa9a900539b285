"""Flight records lie in files while a job runs, and after it has failed."""

import os
import subprocess
import sys

import pytest

from divisible.communication import flight_files
from divisible.communication.flight_record import ACTION, BEGIN, FlightRecord
from tests.support.processes import ROOT


@pytest.fixture
def record(monkeypatch):
    """The record of a process that has none in a file."""
    record = FlightRecord()
    monkeypatch.setattr(flight_files, "own_flight_record", record)
    monkeypatch.setattr(flight_files._Kept, "path", None)
    monkeypatch.setattr(flight_files, "at_end", lambda function: function)
    monkeypatch.delenv(flight_files.VARIABLE, raising=False)
    return record


def test_a_directory_that_is_given_has_those_of_a_job(record, tmp_path, monkeypatch):
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "new"))
    record.write(ACTION, BEGIN, "0F0")
    flight_files.keep_flight_record("job", 3, 4)
    record.write(ACTION, BEGIN, "0F1")
    (log,) = flight_files.logs(tmp_path / "new" / "job")
    assert (log.rank, log.n_ranks, log.process) == (3, 4, os.getpid())
    assert [entry.text for entry in log.entries] == ["0F0", "0F1"]
    assert flight_files.job_directory() == tmp_path / "new" / "job"
    with pytest.raises(ValueError, match=f"there are some in {tmp_path}/new/job"):
        flight_files.logs(tmp_path / "new")


def test_without_a_directory_the_run_goes_on(record, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="there is no flight record in DIVISIBLE_"):
        flight_files.keep_flight_record("job", 0, 2)
    record.write(ACTION, BEGIN, "0F0")
    assert flight_files.job_directory() is None
    assert [entry.text for entry in record.log().entries] == ["0F0"]


def test_a_link_in_place_of_ones_own_directory_is_left_alone(
    record, tmp_path, monkeypatch
):
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"divisible-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is a link. Name a directory in DIVISIBLE_"):
        flight_files.keep_flight_record("job", 0, 2)
    assert flight_files.job_directory() is None
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_directory_that_others_can_write_to_is_left_alone(
    record, tmp_path, monkeypatch
):
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"divisible-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.warns(UserWarning, match=f"other users can write to {own}. Take that"):
        flight_files.keep_flight_record("job", 0, 2)
    assert not list(own.iterdir())


def test_one_rank_alone_has_no_file(record, tmp_path, monkeypatch):
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    flight_files.keep_flight_record("job", 0, 1)
    assert not list(tmp_path.iterdir())


def make_job(job, process, days, text=""):
    """Makes a directory with the record of a process, some days old."""
    record = FlightRecord()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process)
        record.name_rank(0, 2)
    record.write(ACTION, BEGIN, text)
    job.mkdir(parents=True)
    path = job / "rank-0.flight"
    memory = bytearray(record.n_bytes)
    record.move(memory)
    path.write_bytes(memory)
    make_old(path, days)


def test_tidying_follows_no_link(record, tmp_path, monkeypatch):
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    own, kept = tmp_path / f"divisible-{os.getuid()}", tmp_path / "kept"
    own.mkdir(mode=0o700)
    ended = subprocess.Popen(["true"])
    ended.wait()
    make_job(kept, ended.pid, 8)
    (own / "link").symlink_to(kept)
    # The link itself is old, and goes; what it leads to stays.
    (own / "job").mkdir()
    (own / "job" / "rank-0.flight").symlink_to(kept / "rank-0.flight")
    os.utime(own / "job" / "rank-0.flight", (0, 0), follow_symlinks=False)
    make_old(own / "job", 8)
    flight_files.keep_flight_record("mine", 0, 2)
    assert os.listdir(kept) == ["rank-0.flight"]
    assert (own / "link").is_symlink()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rank-0.flight")
    with pytest.raises(ValueError, match="rank-0.flight is no file"):
        flight_files.logs(tmp_path)


def test_records_that_cannot_be_read_do_not_hide_others(tmp_path):
    make_job(tmp_path / "job", os.getpid(), 0)
    (tmp_path / "job" / "rank-1.flight").write_bytes(b"\0" * FlightRecord.n_bytes)
    (tmp_path / "job" / "\x1b[2J.flight").touch()
    with pytest.warns(UserWarning, match="is no flight record. It is left out") as said:
        (log,) = flight_files.logs(tmp_path / "job")
    assert log.rank == 0
    assert len(said) == 2
    assert all(str(each.message).isprintable() for each in said)


def make_old(path, days):
    then = path.stat().st_mtime - days * 24 * 3600
    os.utime(path, (then, then))


def test_old_records_go_when_nobody_writes_them(record, tmp_path, monkeypatch):
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"divisible-{os.getuid()}"
    ended = subprocess.Popen(["true"])
    ended.wait()
    make_job(own / "old", ended.pid, 8)
    make_job(own / "running", os.getpid(), 8)
    make_job(own / "new", ended.pid, 6)
    for days in (0, 8):
        (own / f"empty-{days}").mkdir()
        make_old(own / f"empty-{days}", days)
    # None of the user's files keeps the others there.
    (own / "a-file").touch()
    make_job(own / "with-a-folder", ended.pid, 8)
    (own / "with-a-folder" / "folder.flight").mkdir()
    make_old(own / "with-a-folder" / "folder.flight", 8)
    flight_files.keep_flight_record("mine", 0, 2)
    left = ["a-file", "empty-0", "mine", "new", "running", "with-a-folder"]
    assert sorted(os.listdir(own)) == left


def test_a_directory_that_another_rank_removes_is_made_again(
    record, tmp_path, monkeypatch
):
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    create, removed = os.open, []

    def remove_first(path, *arguments):
        if not removed:
            removed.append(path)
            path.parent.rmdir()
        return create(path, *arguments)

    monkeypatch.setattr(os, "open", remove_first)
    flight_files.keep_flight_record("job", 1, 2)
    assert flight_files.job_directory() == tmp_path / "job"
    assert removed == list((tmp_path / "job").iterdir())


def test_without_room_for_a_file_the_record_is_in_memory(record, tmp_path, monkeypatch):
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    # As on a Mac.
    monkeypatch.delattr(os, "posix_fallocate")
    with pytest.warns(UserWarning, match="this system reserves no room"):
        flight_files.keep_flight_record("job", 0, 2)
    assert not list(tmp_path.iterdir())


FORK = "child = os.fork()\nif not child: "


@pytest.mark.parametrize(
    "end, left",
    [
        ("pass", []),
        ("sys.exit(0)", []),
        ("sys.exit(3)", []),
        ("from mpi4py import MPI\nMPI.Finalize()", []),
        (f"{FORK}sys.exit()\nos.waitpid(child, 0)", []),
        (f"{FORK}sys.exit()\nos.waitpid(child, 0)\nos._exit(1)", ["rank-0.flight"]),
        ("os.kill(os.getpid(), signal.SIGTERM)", ["rank-0.flight"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["rank-0.flight"]),
    ],
)
def test_a_regular_end_removes_the_own_record_only(end, left, tmp_path):
    job = tmp_path / f"divisible-{os.getuid()}" / "job"
    make_job(job, os.getpid(), 0)
    (job / "rank-0.flight").rename(job / "rank-1.flight")
    program = (
        "import os, signal, sys\n"
        "from divisible.communication.flight_files import keep_flight_record\n"
        f"keep_flight_record('job', 0, 2)\n{end}\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    del env[flight_files.VARIABLE]
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, timeout=100)
    assert sorted(os.listdir(job)) == [*left, "rank-1.flight"]


def test_the_end_of_a_process_is_added_to_its_record(tmp_path):
    make_job(tmp_path / "job", os.getpid(), 0)
    flight_files.add_end(tmp_path / "job" / "rank-0.flight", "killed by signal 9")
    (log,) = flight_files.logs(tmp_path / "job")
    assert log.entries[-1].text == "killed by signal 9"
    (tmp_path / "link.flight").symlink_to(tmp_path / "job" / "rank-0.flight")
    with pytest.raises(OSError, match="link"):
        flight_files.add_end(tmp_path / "link.flight", "killed")
