import os
import signal
import subprocess
import sys

from pipeline.supervision import ranks
from pipeline.supervision.ranks import Signals

LONG = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_signal_before_the_start_or_within_it_ends_the_ranks(monkeypatch):
    signals = Signals()
    with signals.passed_on():
        os.kill(os.getpid(), signal.SIGTERM)
        # There is no program of this name.
        assert signals.run(["no-launcher"], os.environ) == -signal.SIGTERM

    start = subprocess.Popen

    def interrupted(*args, **kwargs):
        started = start(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGUSR1)
        return started

    monkeypatch.setattr(ranks.subprocess, "Popen", interrupted)
    signals = Signals()
    with signals.passed_on():
        assert signals.run(LONG, os.environ) == -signal.SIGUSR1


def test_a_launcher_that_ignores_its_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "_SECONDS_TO_END", 0.2)
    ready = tmp_path / "ready"
    command = ["sh", "-c", f"trap '' TERM; touch {ready}; sleep 60; sleep 60"]
    code = Signals().run(command, os.environ, ready.exists)
    assert code == -signal.SIGKILL


def test_a_signal_may_be_for_the_supervisor_alone():
    got = []
    signals = Signals({signal.SIGUSR2: lambda: got.append(1)})
    with signals.passed_on():
        os.kill(os.getpid(), signal.SIGUSR2)
        assert signals.run([sys.executable, "-c", ""], os.environ) == 0
    assert got == [1] and signals.got is None


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = Signals()
        with signals.passed_on():
            os.kill(os.getpid(), signal.SIGHUP)
            code = "import signal as s; exit(s.getsignal(s.SIGHUP) != s.SIG_IGN)"
            assert signals.run([sys.executable, "-c", code], os.environ) == 0
        assert signals.got is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
