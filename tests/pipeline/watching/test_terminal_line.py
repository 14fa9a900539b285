"""A line at the bottom of a terminal neither hides lines nor is cut by them."""

import os
import pty
import subprocess
import sys
import warnings

from pipeline.watching.terminal_line import TerminalLine, terminal_of
from tests.support.terminal import screen


def test_lines_of_any_origin_appear_above(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    line, before = TerminalLine(sys.stdout), (sys.stdout, sys.stderr)
    line.open()
    line.show("first " * 20)
    print("printed")
    line.show("second")
    # As Chainer's PrintReport, which has kept the stream.
    before[0].write("\033[Jreported\n")
    line.show("third")
    sys.stderr.write("")
    print("two\nlines")
    line.show("the last line")
    shown = screen(capsys.readouterr().out)
    assert shown == ["printed", "reported", "two", "lines", "the last line"]
    line.close()
    assert (sys.stdout, sys.stderr) == before


def test_a_long_line_is_cut_to_the_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    TerminalLine(sys.stdout).show("x" * 50)
    assert screen(capsys.readouterr().out) == ["x" * 19]


def test_a_line_that_has_no_end_yet_is_left_alone(capsys):
    line = TerminalLine(sys.stdout)
    line.open()
    print("downloads ", end="")
    line.show("epoch 1")
    print("done")
    line.show("epoch 2")
    line.close()
    print("end")
    assert screen(capsys.readouterr().out)[:2] == ["downloads done", "end"]


def test_warnings_erase_the_line_first(capsys):
    line = TerminalLine(sys.stdout)
    line.open()
    line.show("epoch 1")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        sys.stderr.write("a warning\n")
    line.close()
    # Both streams go to one terminal.
    captured = capsys.readouterr()
    assert screen(captured.out) == [""]
    assert captured.err == "a warning\n"


def test_another_stream_in_the_place_stays(capsys):
    line = TerminalLine(sys.stdout)
    line.open()
    within, sys.stdout = sys.stdout, sys.__stdout__
    line.close()
    assert sys.stdout is sys.__stdout__
    sys.stdout = within.stream


def test_a_stream_to_a_terminal_is_found(tmp_path):
    script = (
        "import sys; from pipeline.watching.terminal_line import terminal_of;"
        "sys.stderr.write(str(terminal_of(sys.stdout)))"
    )
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-c", script]
        place = {"env": os.environ, "stderr": subprocess.PIPE, "text": True}
        found = subprocess.run(command, stdout=theirs, check=True, **place).stderr
        assert found == os.ttyname(theirs)
        found = subprocess.run(
            command, stdout=subprocess.DEVNULL, check=True, **place
        ).stderr
        assert found == "None"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_closed_stream_is_no_terminal(tmp_path):
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        pass
    assert terminal_of(file) is None
