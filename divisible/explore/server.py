"""The local server of the page: files of the page, and answers to its questions.

Only programs on this machine reach it. A browser that shows another site's page may
send requests here. So the server answers only requests that name this address. It
accepts questions only as JSON, which no such page can send.
"""

from __future__ import annotations

import functools
import json
import socket
import sys
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from divisible.explore.answer import answer, start
from divisible.explore.editing import moved
from divisible.explore.question import Question
from divisible.explore.reasons import why
from divisible.explore.simulation import Simulation, simulated
from divisible.explore.sources import Sources
from divisible.records import finite_number, plain_integer, shown

HOST = "127.0.0.1"
#: The files of the page, and their types.
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
# Questions are longest with the text of a schedule.
_MOST_BYTES = 4_000_000
# Seconds after which a client that sends nothing is left.
_PATIENCE = 30
# The page may load from this server alone, and no other page may show it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Answers:
    """The answers to what a page asks, by the name of the request.

    Args:
        sources: Contents of the files that were read.

    Example:
        >>> answers = Answers(Sources())
        >>> question = {"schedule": "gpipe", "ranks": 1, "microbatches": 2}
        >>> answers.get("answer", {"question": question})["seconds"]
        6.0
        >>> move = {"question": question, "rank": 0, "source": 2, "target": 1}
        >>> print(answers.get("move", move)["text"])
        gpipe edited: 2 microbatches, 1 stage on rank 0
        step      0   1   2   3
        rank 0  0F0 0B0 0F1 0B1
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # A click asks about what was drawn last.
        self._simulated = functools.lru_cache(maxsize=8)(
            lambda question: simulated(question, sources)
        )
        self._known: dict[str, Callable[[dict[str, Any]], Any]] = {
            "start": lambda _: start(sources),
            "answer": self._answer,
            "why": self._why,
            "move": self._move,
        }

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def get(self, name: str, content: dict[str, Any]) -> Any:
        """Returns plain values for JSON.

        Args:
            name: One of ``'start'``, ``'answer'``, ``'why'`` and ``'move'``.
            content: Fields that the page sends with it.

        Raises:
            KeyError: If there is no such name.
            ValueError: If a question has no answer; the message says why.
            TypeError: If a value is of the wrong type.
        """
        ask = self._known[name]
        if not isinstance(content, dict):
            raise TypeError(f"a request has fields with names, not {shown(content)}")
        return ask(content)

    def _simulation(self, content: dict[str, Any]) -> Simulation:
        return self._simulated(Question.from_json(content.get("question")))

    def _answer(self, content: dict[str, Any]) -> Any:
        return answer(self._simulation(content), self._sources)

    def _why(self, content: dict[str, Any]) -> Any:
        rank = plain_integer("rank", content.get("rank"))
        seconds = finite_number("seconds", content.get("seconds"))
        return why(self._simulation(content), rank, seconds)._asdict()

    def _move(self, content: dict[str, Any]) -> Any:
        places = (
            plain_integer(name, content.get(name))
            for name in ("rank", "source", "target")
        )
        return {"text": str(moved(self._simulation(content).schedule, *places))}


class Server(ThreadingHTTPServer):
    """The server of the page, on this machine's own address.

    Args:
        sources: Contents of the files that were read.
        port: The port; 0 for one that is free.

    Attributes:
        url (str): The address of the page.

    Raises:
        OSError: If the port is in use.
    """

    daemon_threads = True

    def __init__(self, sources: Sources, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.answers = Answers(sources)
        self.url = f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints errors, unless a browser has left before its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def page_file(name: str) -> bytes:
    """Returns a file of the page.

    Args:
        name: Its name, such as ``'main.js'``.

    Raises:
        FileNotFoundError: If the page has no such file.
    """
    files = resources.files("divisible.explore") / "page"
    if name not in {each.name for each in files.iterdir()}:
        raise FileNotFoundError(f"the page has no file {name!r}")
    return (files / name).read_bytes()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = _PATIENCE
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Sends a file of the page."""
        name = self.path.split("?")[0].lstrip("/") or "index.html"
        kind = TYPES.get(name.rpartition(".")[2])
        if not self._is_here():
            return
        try:
            if kind is None:
                raise FileNotFoundError(name)
            self._send(HTTPStatus.OK, page_file(name), kind)
        except FileNotFoundError:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is no such file"})

    def do_POST(self) -> None:
        """Answers a question."""
        if not self._is_here():
            return
        if self.headers.get_content_type() != "application/json":
            words = "questions are JSON: send Content-Type: application/json"
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, words)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > _MOST_BYTES:
            words = f"a question has at most {_MOST_BYTES} bytes, and says how many"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
            return
        name = self.path.lstrip("/")
        body = self.rfile.read(int(length))
        if name not in self.server.answers:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is no such request"})
            return
        try:
            found = self.server.answers.get(name, json.loads(body))
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
        except Exception:
            # A mistake in this program: the page names it, and the terminal shows it.
            words = traceback.format_exc()
            self.log_error("%s", words)
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": words})
        else:
            self._send_json(HTTPStatus.OK, found)

    def _is_here(self) -> bool:
        """Refuses requests that came here by another name than this machine's own."""
        port = self.server.server_port
        if self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}"):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, f"open the page as {self.server.url}")
        return False

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        # The rest of the request is not read.
        self.close_connection = True
        self._send_json(status, {"error": words})

    def _send_json(self, status: HTTPStatus, content: Any) -> None:
        body = json.dumps(content, allow_nan=False).encode()
        self._send(status, body, "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_error(self, *words: Any) -> None:
        """Prints an error, unless a browser was idle and is left for that."""
        if not isinstance(sys.exc_info()[1], socket.timeout):
            super().log_error(*words)

    def log_request(self, *_: Any) -> None:
        """Prints nothing for a request that was answered."""
