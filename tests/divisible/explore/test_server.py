"""The local server: files, answers, refusals in words, and who may ask."""

import http.client
import json
import threading
import time

import pytest

from divisible.explore.server import Server, page_file
from divisible.explore.sources import Sources
from divisible.schedules import Schedule
from tests.support.processes import LOAD

QUESTION = {"schedule": "gpipe", "ranks": 2, "microbatches": 2}


@pytest.fixture(scope="module")
def server():
    with Server(Sources()) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join(10)


def request(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def ask(server, name, content, status=200):
    body = json.dumps(content)
    headers = {"Content-Type": "application/json"}
    response, found = request(server, "POST", f"/{name}", body, **headers)
    assert response.status == status, found
    return json.loads(found)


def test_the_page_loads_from_here_alone(server):
    response, body = request(server, "GET", "/")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"<main>" in body
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    for name in ("main.js", "style.css"):
        response, body = request(server, "GET", f"/{name}")
        assert response.status == 200
        assert body == page_file(name)


@pytest.mark.parametrize(
    "path", ["/../server.py", "/server.py", "/%2e%2e/server.py", "/page/", "/none.js"]
)
def test_other_files_are_not_sent(server, path):
    response, _ = request(server, "GET", path)
    assert response.status == 404


def test_a_question_is_answered(server):
    found = ask(server, "answer", {"question": QUESTION})
    assert found["seconds"] == 9.0
    assert Schedule.parse(found["text"]).n_ranks == 2
    assert ask(server, "start", {})["defaults"]["schedule"] == "1f1b"
    moment = {"question": QUESTION, "rank": 1, "seconds": 0.5}
    assert "message 0F0>1" in ask(server, "why", moment)["text"]
    move = {"question": QUESTION, "rank": 1, "source": 1, "target": 2}
    assert "1F0 1B0 1F1 1B1" in ask(server, "move", move)["text"].splitlines()[3]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("answer", {"question": {"schedule": "1f2b"}}, "no schedule '1f2b'"),
        ("answer", {"question": {"ranks": 10**6}}, "fewer ranks"),
        ("answer", {}, "has no fields"),
        ("answer", [], "fields with names"),
        ("why", {"question": QUESTION, "rank": 9, "seconds": 0}, "no rank 9"),
        ("why", {"question": QUESTION, "rank": 0}, "seconds must be a number"),
        ("move", {"question": QUESTION, "rank": 0, "source": 3}, "target must be"),
        (
            "move",
            {"question": QUESTION, "rank": 0, "source": 3, "target": 0},
            "!0B1!",
        ),
    ],
)
def test_a_refusal_has_words(server, name, content, words):
    assert words in ask(server, name, content, status=422)["error"]


def test_what_is_not_there_is_not_found(server):
    assert "no such request" in ask(server, "other", {}, status=404)["error"]


def test_another_sites_page_cannot_ask(server):
    body = json.dumps({"question": QUESTION})
    # A page may send plain text anywhere, but not JSON.
    response, found = request(server, "POST", "/answer", body)
    assert response.status == 415
    assert b"gpipe" not in found
    # A name that was made to lead here.
    headers = {"Host": "site.example", "Content-Type": "application/json"}
    response, found = request(server, "POST", "/answer", body, **headers)
    assert response.status == 403
    response, _ = request(server, "GET", "/", Host="site.example")
    assert response.status == 403


def test_broken_and_endless_bodies_are_refused(server):
    headers = {"Content-Type": "application/json"}
    response, _ = request(server, "POST", "/answer", "{", **headers)
    assert response.status == 422
    headers["Content-Length"] = str(10**12)
    response, _ = request(server, "POST", "/answer", "", **headers)
    assert response.status == 413


def test_sixteen_ranks_and_64_microbatches_are_quick(server):
    question = {"schedule": "zb_v", "ranks": 16, "microbatches": 64}
    ask(server, "answer", {"question": question})
    begin = time.perf_counter()
    found = ask(server, "answer", {"question": question})
    # A tenth of that on an idle machine.
    assert time.perf_counter() - begin < 5 * LOAD
    assert len(found["events"]["text"]) == 16 * 64 * 6


def test_a_port_in_use_is_an_error(server):
    with pytest.raises(OSError):
        Server(Sources(), server.server_port)


def test_an_idle_browser_is_left_without_a_word(monkeypatch, capfd):
    monkeypatch.setattr("divisible.explore.server._Handler.timeout", 0.2)
    with Server(Sources()) as idle:
        thread = threading.Thread(target=idle.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        connection = http.client.HTTPConnection(*idle.server_address, timeout=30)
        connection.request("GET", "/style.css")
        connection.getresponse().read()
        # The server closes what sends nothing.
        assert connection.sock.recv(1) == b""
        connection.close()
        idle.shutdown()
        thread.join(10)
    assert capfd.readouterr().err == ""
