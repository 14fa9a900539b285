"""One start of the ranks of a run, by a launcher."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Callable

#: Signals that are passed on to the ranks, and after which no run starts again.
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Seconds between two looks at a launcher, and for it to end after a signal.
_SECONDS_BETWEEN_LOOKS, _SECONDS_TO_END = 0.1, 10.0
# The number of an option of Linux's prctl.
_SIGNAL_AT_PARENTS_END = 1


class Signals:
    """The signals that this process got while it watches ranks.

    Args:
        own: Functions for signals that are not passed on, by signal.

    Attributes:
        got: The first of the signals that are passed on, or ``None``.
    """

    def __init__(self, own: Mapping[int, Callable[[], None]] | None = None) -> None:
        self.got: signal.Signals | None = None
        self._own = dict(own or {})
        self._launcher: subprocess.Popen | None = None
        self._is_passed = False

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """Passes signals on to the launcher within the block.

        Signals that this process was started to ignore stay ignored, as by nohup.
        """
        passed = [n for n in PASSED_ON if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in passed}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number in self._own:
            self._own[number]()
            return
        self.got = self.got or signal.Signals(number)
        if self._launcher is not None and self._launcher.poll() is None:
            self._is_passed = True
            self._launcher.send_signal(number)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        is_over: Callable[[], bool] = lambda: False,
    ) -> int:
        """Starts a launcher, and waits until it has ended.

        The launcher is in a session of its own, so that a signal of the terminal
        reaches it once. It ends with this process. After a signal, none is started.

        Args:
            command: The launcher with its arguments.
            environment: Variables of the ranks.
            is_over: Called again and again; ends the launcher if it returns ``True``.

        Returns:
            The exit code; negative for the number of a signal.

        Raises:
            OSError: If the launcher cannot be started.
        """
        if self.got is not None:
            return -self.got
        self._launcher = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            # A signal may have come while the launcher was being started.
            if self.got is not None and not self._is_passed:
                self._launcher.send_signal(self.got)
            while not is_over():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return self._launcher.wait(_SECONDS_BETWEEN_LOOKS)
            return _ended(self._launcher)
        finally:
            _ended(self._launcher)
            self._launcher = None


def _ended(launcher: subprocess.Popen) -> int:
    """Ends a launcher that has not ended, and returns its exit code."""
    if launcher.poll() is None:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(_SECONDS_TO_END)
        # A launcher may wait for a host that does not answer.
        os.killpg(launcher.pid, signal.SIGKILL)
    return launcher.wait()


def _end_with_parent() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGTERM)
