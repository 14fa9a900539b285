"""Stands for a process that `tests.support.python_server` has forked.

The launcher starts this one, which hands its files and its signals on, and ends as the
other one has ended. It loads as little as it can.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys

#: Signals that are meant for the other process.
HANDED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGALRM")


def ask(server: socket.socket, arguments: list) -> None:
    """Sends what the server needs to run Python with some arguments."""
    files = [0, 1, 2]
    if "PMI_FD" in os.environ:
        # By which a rank talks to the launcher.
        files.append(int(os.environ["PMI_FD"]))
    text = json.dumps([arguments, dict(os.environ), os.getcwd(), files]).encode()
    socket.send_fds(server, [struct.pack("!i", len(text))], files)
    server.sendall(text)


def answer(server: socket.socket) -> int:
    """Returns a number that the server sends."""
    said = server.recv(4, socket.MSG_WAITALL)
    if len(said) < 4:
        sys.exit("the process that runs Python for tests has ended")
    return struct.unpack("!i", said)[0]


def main(address: str, arguments: list) -> None:
    # Until it is known to whom.
    numbers = [getattr(signal, name) for name in HANDED_ON]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    ask(server, arguments)
    process = answer(server)
    if not process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        os.execv(sys.executable, [sys.executable, *arguments])

    def hand_on(number: int, _) -> None:
        # It may have ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for number in numbers:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    status = answer(server)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
