"""Objects in processes of their own, whose methods are called in turn.

What one process does to its memory and its threads, such as keeping what it has freed,
is of no use to the others then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, Callable

#: Seconds that a call may take. On a busy machine the processes, which start together,
#: take minutes to import their packages.
DEADLINE = 1200.0


class Worker:
    """An object in another process.

    Args:
        name: Name of the object, for errors.
        make: Function of a module that makes the object.
        arguments: Arguments of the function.
        environment: Variables of the process that differ from those here.
    """

    def __init__(
        self,
        name: str,
        make: Callable,
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, make, arguments), daemon=True
        )
        with _environment(environment or {}):
            self._process.start()
        theirs.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method and returns its result.

        Raises:
            RuntimeError: If the method raised an error, or its process is gone.
            TimeoutError: If the method takes too long.
        """
        self.send(method, *arguments)
        return self.receive()

    def send(self, method: str, *arguments: Any) -> None:
        """Starts a method."""
        self._connection.send((method, arguments))

    def receive(self) -> Any:
        """Returns the result of the method that was started."""
        if not self._connection.poll(DEADLINE):
            raise TimeoutError(
                f"{self._name} takes more than {DEADLINE:g} s; run this where nothing"
                " else uses the cores"
            )
        try:
            is_error, result = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self._name} has ended") from None
        if is_error:
            raise RuntimeError(f"{self._name} failed:\n{result}")
        return result

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.join()
        self._connection.close()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(connection: Connection, make: Callable, arguments: tuple) -> None:
    """Makes the object and calls its methods until the pipe is closed."""
    made = None
    while True:
        try:
            method, its_arguments = connection.recv()
        except EOFError:
            return
        try:
            if made is None:
                made = make(*arguments)
            reply = False, getattr(made, method)(*its_arguments)
        except Exception:
            reply = True, traceback.format_exc()
        connection.send(reply)
