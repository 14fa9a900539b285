"""Copies of a trainer's run, one process: the newest state is resumed from."""

import os
import shutil
import signal
import time

import pytest
from mpi4py import MPI

from pipeline import SnapshotError, StopOnSignal, memory_copies, snapshot
from pipeline.snapshots import writing
from tests.support.snapshot_training import small_trainer, state_of


class Stopped(Exception):
    """Stands for the end of a process in the midst of a run."""


def stop(trainer):
    raise Stopped


def ask_to_stop(trainer):
    trainer.updater.request_stop(signal.SIGTERM)


def trained(
    folder,
    n_iterations,
    *,
    stop_at=None,
    how=stop,
    saves=(1, "iteration"),
    **options,
):
    """Trains with copies in a folder; returns the state and both extensions.

    A stopped run leaves its copies, as a killed one does.
    """
    trainer, stage = small_trainer(
        MPI.COMM_SELF, str(folder / "out"), (n_iterations, "iteration")
    )
    memory = folder / "memory"
    memory.mkdir(parents=True, exist_ok=True)
    extension = memory_copies(directory=memory, **options)
    trainer.extend(extension)
    disk = snapshot(resume="auto")
    trainer.extend(disk, trigger=saves)
    if stop_at is not None:
        trainer.extend(how, name="how", trigger=stop_at, priority=-1000)
    try:
        trainer.run(show_loop_exception_msg=False)
    except Stopped:
        # A process that has ended holds no lock.
        trainer.updater.pipeline.copies.keep()
    found = {key: str(value) for key, value in state_of(stage).items()}
    return found, extension, disk


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found, *_ = trained(tmp_path_factory.mktemp("undisturbed"), 6)
    return found


def once_at(iteration):
    return lambda trainer: trainer.updater.iteration == iteration


def test_the_newest_of_memory_and_disk_is_resumed_from(tmp_path, undisturbed, capsys):
    # Memory has a newer one.
    trained(tmp_path, 6, stop_at=once_at(3), saves=(2, "iteration"))
    assert os.listdir(tmp_path / "memory")
    found, extension, disk = trained(
        tmp_path, 6, stop_at=once_at(4), saves=once_at(4), every=2
    )
    assert extension.resumed_from.n_steps == 3 and disk.resumed_from is None
    printed = capsys.readouterr().out
    assert "resumed from the memory of hosts: iteration 3, saved" in printed
    # The snapshot was saved after the copy of the same minibatch.
    found, extension, disk = trained(tmp_path, 6, every=10)
    assert extension.resumed_from is None
    assert disk.resumed_from.name == "snapshot_iter_4"
    assert found == undisturbed
    assert os.listdir(tmp_path / "memory") == []


def test_a_lost_disk_is_not_needed(tmp_path, undisturbed):
    trained(tmp_path, 6, stop_at=once_at(3))
    shutil.rmtree(tmp_path / "out")
    found, extension, disk = trained(tmp_path, 6)
    assert extension.resumed_from.n_steps == 3 and disk.resumed_from is None
    assert found == undisturbed


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_run_that_a_signal_stops_keeps_a_copy_if_it_has_no_snapshot(
    tmp_path, undisturbed, is_saved
):
    options = {"saves": (1, "iteration") if is_saved else never, "every": 3}
    stopped = {"stop_at": once_at(3), "how": ask_to_stop}
    trained(tmp_path, 6, **stopped, **options)
    assert bool(os.listdir(tmp_path / "memory")) != is_saved
    found, extension, disk = trained(tmp_path, 6, **options)
    assert (extension.resumed_from is None) == is_saved
    # The last minibatch before the stop is in the copy.
    assert is_saved or extension.resumed_from.n_steps == 4
    assert found == undisturbed and os.listdir(tmp_path / "memory") == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_copies_stay_if_the_last_snapshot_fails_in_the_background(
    tmp_path, monkeypatch, is_stopped
):
    def train():
        stop = 6, "iteration"
        trainer, _ = small_trainer(MPI.COMM_SELF, str(tmp_path / "out"), stop)
        copies = memory_copies(directory=tmp_path / "memory")
        trainer.extend(copies)
        on_error = "warn" if is_stopped else "raise"
        disk = snapshot(background=True, resume="auto", on_error=on_error)
        trainer.extend(disk, trigger=(6, "iteration"))
        if is_stopped:
            trainer.extend(ask_to_stop, trigger=once_at(4))
            trainer.extend(StopOnSignal())
        return trainer, copies

    def fail(path, arrays):
        if "out" in path.parts:
            raise OSError(28, "No space left on device")
        return write_arrays(path, arrays)

    (tmp_path / "memory").mkdir()
    write_arrays = writing.write_arrays
    monkeypatch.setattr(writing, "write_arrays", fail)
    trainer, _ = train()
    kind = pytest.warns(UserWarning) if is_stopped else pytest.raises(SnapshotError)
    with kind:
        trainer.run(show_loop_exception_msg=False)
    # A process that has ended holds no lock.
    trainer.updater.pipeline.copies.keep()
    monkeypatch.undo()
    trainer, copies = train()
    copies.initialize(trainer)
    assert copies.resumed_from.n_steps == (5 if is_stopped else 6)
    trainer.updater.pipeline.close()


def test_copies_are_newer_than_the_snapshot_before_them_also_by_a_slow_clock(
    tmp_path, undisturbed, monkeypatch
):
    trained(tmp_path, 6, stop_at=once_at(3), saves=once_at(3))
    shutil.rmtree(tmp_path / "memory")
    now = time.time()
    # Rank 0 is on another host now, whose clock is an hour behind.
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    _, _, disk = trained(tmp_path, 6, stop_at=once_at(5), saves=never)
    assert disk.resumed_from.name == "snapshot_iter_3"
    found, extension, _ = trained(tmp_path, 6, saves=never)
    assert extension.resumed_from.n_steps == 5 and found == undisturbed


def never(trainer):
    return False


def test_a_run_without_resume_begins_anew(tmp_path, undisturbed):
    trained(tmp_path, 6, stop_at=once_at(3), saves=never)
    found, extension, _ = trained(tmp_path, 6, resume=None, saves=never)
    assert extension.resumed_from is None and found == undisturbed
    assert os.listdir(tmp_path / "memory") == []


def test_auto_copies_less_often_if_copies_are_slow(tmp_path, undisturbed):
    found, extension, _ = trained(tmp_path, 6, every="auto")
    # A step of the little model takes less time than a copy.
    assert extension.pace.every > 6 and found == undisturbed


def test_a_failed_copy_warns_if_wanted(tmp_path, undisturbed, monkeypatch):
    def fail(*_):
        raise SnapshotError("no room today")

    monkeypatch.setattr("pipeline.copies.copies.claim", fail)
    with pytest.raises(SnapshotError, match="no room today"):
        trained(tmp_path, 6)
    with pytest.warns(UserWarning, match="training goes on, but no room today"):
        found, *_ = trained(tmp_path / "again", 6, on_error="warn")
    assert found == undisturbed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"every": 0}, ValueError),
        ({"every": True}, TypeError),
        ({"every": 1.5}, TypeError),
        ({"every": "often"}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"resume": "result/snapshot_iter_3"}, ValueError),
    ],
)
def test_bad_arguments_are_refused(arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=name):
        memory_copies(**arguments)
