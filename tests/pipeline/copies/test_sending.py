"""Files that a rank sends to itself; tests/mpi has several ranks."""

from types import SimpleNamespace

import pytest
from mpi4py import MPI

from pipeline import SnapshotError
from pipeline.copies import sending
from pipeline.copies.sending import Sending, Transfer

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def ranks():
    world = MPI.COMM_SELF.Dup()
    yield SimpleNamespace(world=world, timeout=20, watch=None)
    world.Free()


def prepared(ranks, folder):
    (folder / "sent").mkdir()
    (folder / "received").mkdir()
    (folder / "sent" / "a.npz").write_bytes(CONTENT)
    transfers = [Transfer("a.npz", len(CONTENT), 0, 0)]
    path_of = (folder / "sent").joinpath
    return lambda: Sending(ranks, transfers, path_of, folder / "received")


def test_each_piece_has_a_deadline_of_its_own(ranks, tmp_path, monkeypatch):
    waits, wait = [], sending.wait

    def counted(test, timeout, *others):
        waits.append(timeout)
        return wait(test, timeout, *others)

    monkeypatch.setattr(sending, "wait", counted)
    monkeypatch.setattr(sending, "_PIECE_BYTES", 4096)
    under_way = prepared(ranks, tmp_path)()
    assert under_way.most_bytes == len(CONTENT)
    under_way.start()
    under_way.wait()
    under_way.name_files()
    # Three pieces are sent and received.
    assert waits == [ranks.timeout] * 6
    (received,) = (tmp_path / "received").iterdir()
    assert received.name == "a.npz" and received.read_bytes() == CONTENT


def test_memory_for_a_file_is_there_before_anything_is_sent(
    ranks, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    prepare = prepared(ranks, tmp_path)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(SnapshotError, match=r"a\.npz\.receiving: No space left"):
        prepare()
