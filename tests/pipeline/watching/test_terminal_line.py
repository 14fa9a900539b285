"""A line at the bottom of a terminal neither hides lines nor is cut by them."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
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


def test_a_terminal_without_a_size_has_the_usual_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 0, 0, 0, 0))
        TerminalLine(sys.stdout, os.ttyname(theirs)).show("x" * 50)
    finally:
        os.close(ours)
        os.close(theirs)
    assert screen(capsys.readouterr().out) == ["x" * 29]


def test_wide_characters_count_as_two_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    TerminalLine(sys.stdout).show("損失" * 8)
    assert screen(capsys.readouterr().out) == ["損失" * 4 + "損"]


def test_what_a_stream_cannot_encode_is_escaped():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    TerminalLine(out).show("Verlust_ö 1")
    assert out.buffer.getvalue() == b"\033[JVerlust_\\xf6 1\r"


def test_lines_written_together_erase_the_line(capsys):
    line = TerminalLine(sys.stdout)
    line.open()
    line.show("a line that is longer than the others")
    sys.stdout.writelines(["one\n", "two\n"])
    line.close()
    assert screen(capsys.readouterr().out) == ["one", "two", ""]


def test_a_terminal_that_is_gone_does_not_end_the_run(monkeypatch):
    out = io.StringIO()
    line = TerminalLine(out)
    line.show("epoch 1")
    out.close()
    line.close()


def launched(tmp_path, stdout):
    """Returns the command of a launcher, whose rank prints what it finds to stderr."""
    script = (
        "import sys; from pipeline.watching.terminal_line import terminal_of;"
        "sys.stderr.write(str(terminal_of(sys.stdout)))"
    )
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "sys.exit(subprocess.call(sys.argv[2:], stdout=int(sys.argv[1])))\n",
        encoding="utf-8",
    )
    launcher.chmod(0o755)
    return [str(launcher), str(stdout), sys.executable, "-c", script]


def test_a_launcher_decides_that_has_its_own_terminal_for_ranks(tmp_path):
    # Open MPI gives ranks such a terminal, and prints to a file what they print.
    ours, theirs = pty.openpty()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    place = {"env": os.environ, "stderr": subprocess.PIPE, "text": True}
    try:
        for printed_to, given, expected in (
            (log, theirs, "None"),
            (theirs, theirs, os.ttyname(theirs)),
            # The rank's script has sent its output to a file.
            (theirs, log, "None"),
        ):
            command = launched(tmp_path, given)
            found = subprocess.run(
                command, stdout=printed_to, pass_fds=[given], check=True, **place
            )
            assert found.stderr == expected
    finally:
        for descriptor in (ours, theirs, log):
            os.close(descriptor)


def test_a_closed_stream_is_no_terminal(tmp_path):
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        pass
    assert terminal_of(file) is None
