"""Shares that running hosts ask for."""

import shutil
import threading

import pytest

from benchmarks.heterogeneous import shares


class Hosts:
    """A cluster of three hosts, which remembers their shares."""

    def __init__(self):
        self.now = [2.0] * 3

    def __len__(self):
        return 3

    def set(self, host, cpus):
        self.now[host] = cpus


def test_hosts_get_what_they_ask_for(tmp_path):
    folder, hosts = tmp_path / "shares", Hosts()
    folder.mkdir()
    thread = threading.Thread(target=shares.serving(folder), args=(hosts,))
    thread.start()
    shares.ask(folder, 0, [0.5, 0.25])
    assert hosts.now == [0.5, 0.25, shares.IDLE]
    shares.ask(folder, 1, [0.1, 0.2, 0.3])
    assert hosts.now == [0.1, 0.2, 0.3]
    shutil.rmtree(folder)
    thread.join(10)
    assert not thread.is_alive()


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(shares, "PATIENCE", 0.1)
    with pytest.raises(TimeoutError, match="nobody gave the hosts their shares"):
        shares.ask(tmp_path, 0, [1.0])
