"""Supervisors of programs without MPI; ``tests/mpi`` has those of trainings."""

import json
import os
import signal
import threading
import time

import pytest

from divisible.communication import flight_files
from divisible.communication.flight_record import CALL, END, FlightRecord
from divisible.communication.flight_search import newest_job
from pipeline.supervision import supervisor as module
from pipeline.supervision.budget import Budget
from pipeline.supervision.fleet import Fleet
from pipeline.supervision.hosts import read_hosts
from pipeline.supervision.launching import Job
from pipeline.supervision.orders import Orders
from pipeline.supervision.supervisor import Supervisor
from pipeline.training import control_files
from tests.support.supervisors import launcher_of_hosts, supervisor


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
    assert supervisor(leaves(code), 1, Budget(0)).run() == code
    assert len(list(given.iterdir())) == is_left
    if is_left:
        assert len(flight_files.logs(newest_job())) == 1


def test_old_records_of_supervisors_go(tmp_path, monkeypatch, leaves):
    monkeypatch.delenv(flight_files.VARIABLE, raising=False)
    monkeypatch.setattr(flight_files.tempfile, "tempdir", str(tmp_path))
    supervisor(leaves(3), 1, Budget(0)).run()
    (job,) = (tmp_path / f"divisible-{os.getuid()}").glob("supervised-*/job")
    then = time.time() - 8 * 24 * 3600
    (file,) = job.iterdir()
    os.utime(file, (then, then))
    monkeypatch.setattr(flight_files, "is_running", lambda log: False)
    supervisor(leaves(0), 1, Budget(0)).run()
    assert not job.exists()


def test_the_run_goes_on_without_flight_records(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "file" / "folder"))
    assert supervisor(["sh", "-c", "exit 75"], 1, Budget()).run() == 75
    assert "leave no flight records" in capfd.readouterr().err
    # A long run may outlive its files.
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    command = ["sh", "-c", f"rmdir ${flight_files.VARIABLE}; exit 3"]
    assert supervisor(command, 1, Budget(0)).run() == 3


def record(n_steps, n_saved, error):
    """Returns a flight record of a rank that failed after so many steps."""
    made = FlightRecord()
    for number in range(1, n_steps + 1):
        made.begin_call(1, number, "step")
        made.write(CALL, END, "step")
        made.end_step()
    made.save(n_saved)
    made.fail(error)
    return bytes(made._memory)


@pytest.mark.parametrize("steps, n_starts", [([10, 2, 2], 2), ([10, 3, 3], 3)])
def test_an_error_at_the_same_step_of_the_training_is_the_programs(
    tmp_path, monkeypatch, capfd, steps, n_starts
):
    """The second start goes on from a snapshot of the first, after eight steps."""
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    saved = [8, 0, 0]
    for i, (n_steps, n_saved) in enumerate(zip(steps, saved)):
        data = record(n_steps, n_saved, TypeError("no loss"))
        (tmp_path / f"record{i}").write_bytes(data)
    starts = tmp_path / "starts"
    folder = f"${flight_files.VARIABLE}/job"
    command = (
        f"mkdir {folder}; n=$(cat {starts} 2>/dev/null | wc -l); echo >> {starts};"
        f" cp {tmp_path}/record$n {folder}/rank-0.flight; exit 1"
    )
    assert supervisor(["sh", "-c", command], 1, Budget()).run() == 1
    assert "the same step twice" in capfd.readouterr().err
    assert len(starts.read_text()) == n_starts


def test_a_launcher_that_outlives_its_ranks_is_ended(
    tmp_path, monkeypatch, capfd, leaves
):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr(module, "_SECONDS_TO_END", 0.2)
    monkeypatch.setattr(flight_files, "is_running", lambda log: False)
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path / "records"))
    (command,) = leaves("$(sleep 600)")[2:]
    begun = time.monotonic()
    code = supervisor(["sh", "-c", command], 1, Budget(0)).run()
    assert code == 128 + signal.SIGTERM and time.monotonic() - begun < 300
    assert "but the launcher still runs. Ends" in capfd.readouterr().err


def of_hosts(tmp_path, program, hosts="a,b,c", n_ranks=2, **options):
    """Returns the supervisor of a program that stands for the ranks on some hosts."""
    launcher = tmp_path / "start"
    launcher.write_text('#!/bin/sh\nshift 2; exec "$@"\n')
    launcher.chmod(0o755)
    job = Job([launcher_of_hosts(tmp_path, launcher)], ["sh", "-c", program])
    hosts = [host._replace(slots=1) for host in read_hosts(hosts)]
    shrinks = options.pop("shrinks", False)
    fleet = Fleet(hosts, n_ranks, shrinks, answering=job.answering)
    budget = options.pop("budget", Budget())
    return Supervisor(job, fleet, budget, tmp_path / "log", **options)


def starts(tmp_path):
    """Returns the hosts of each start in the log."""
    lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
    return [line["hosts"] for line in lines if line["event"] == "start"]


def test_ranks_move_to_a_spare_host_and_then_to_fewer(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(Budget, "pause", 0.0)
    # Each start loses the host of its second rank; with one rank it is through.
    program = f"""
        case $(cat {tmp_path}/log | grep -c '"start"') in
            1) touch {tmp_path}/down-b; exit 255;;
            2) touch {tmp_path}/down-c; exit 255;;
        esac
    """
    assert of_hosts(tmp_path, program, shrinks=True).run() == 0
    assert starts(tmp_path) == [["a:1", "b:1"], ["a:1", "c:1"], ["a:1"]]
    first, second = (
        line for line in capfd.readouterr().err.splitlines() if "divisible run" in line
    )
    # It is not the same error of the program twice.
    assert "b out of reach: exit code 255" in first
    assert "Starts 2 ranks (a:1, c:1) again (b is out of reach); 4 more" in first
    assert "Starts 1 rank (a:1) again (b, c are out of reach); 3 more" in second


def test_a_run_waits_for_hosts_within_its_budget(tmp_path, capfd, monkeypatch):
    (tmp_path / "down-b").touch()
    program = of_hosts(tmp_path, "exit 0", hosts="a,b", budget=Budget(2))
    asked, pauses = [], []

    def answering(names):
        asked.append(names)
        if len(asked) == 2:
            (tmp_path / "down-b").unlink()
        return Job.answering(program.job, names)

    program.fleet.answering = answering
    monkeypatch.setattr(program, "_pause", pauses.append)
    # The launcher cannot reach the host at the first start.
    assert program.run() == 0
    assert len(asked) == 2 and len(pauses) == 2
    assert starts(tmp_path) == [["a:1", "b:1"]] * 2
    (tmp_path / "down-b").touch()
    asked.extend([None] * 9)
    program.budget = Budget(1)
    assert program.run() == 255
    assert "All 1 restarts are spent, with too few hosts for 2 ranks (b is out of" in (
        capfd.readouterr().err
    )


def test_an_order_to_grow_before_a_restart_asks_all_hosts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "pause", 0.0)
    # The first start loses host b.
    mark = tmp_path / "down-b"
    once = f"[ -e {tmp_path}/lost ] && exit; touch {tmp_path}/lost {mark}; exit 255"
    with control_files.opened(tmp_path / "run") as folder:
        orders, given = Orders(folder, "script"), []
        program = of_hosts(tmp_path, once, "a,b", shrinks=True, orders=orders)

        def answering(names):
            found = Job.answering(program.job, names)
            if not given:
                # It is back, and somebody says so during the pause.
                mark.unlink()
                given.append(control_files.give(folder, "grow"))
            return found

        program.fleet.answering = answering
        assert program.run() == 0
        assert "all hosts are asked" in control_files.answered(folder, *given, 5)
    assert starts(tmp_path) == [["a:1", "b:1"]] * 2


def test_an_order_stops_a_run_that_waits_for_a_restart(tmp_path, capfd):
    with control_files.opened(tmp_path / "run") as folder:
        orders = Orders(folder, "script")
        program = supervisor(["sh", "-c", "kill -9 $$"], 1, Budget(), orders=orders)
        # The pauses before restarts are 1, 2, 4, ... seconds.
        given = []
        timer = threading.Timer(
            2, lambda: given.append(control_files.give(folder, "stop"))
        )
        timer.start()
        assert program.run() in (75, 128 + signal.SIGKILL)
        text = control_files.answered(folder, *given, 5)
        assert "do not start again" in text or "SIGKILL" in text
