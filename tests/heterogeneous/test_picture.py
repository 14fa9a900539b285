"""Partitions as text and as pictures."""

from heterogeneous import rectangular_partition

FIGURE_6 = """\
5 processors in 2 columns of 3, 2; 203-80-26 units, 1024 samples
communication 73913.6

processor  column  ability   width  height  samples           hidden units
        0       0   0.0500  0.3500  0.1429  0 to 357          0 to 10
        1       0   0.1000  0.3500  0.2857  0 to 357          11 to 33
        2       0   0.2000  0.3500  0.5714  0 to 357          34 to 79
        3       1   0.3000  0.6500  0.4615  358 to 1023       0 to 36
        4       1   0.3500  0.6500  0.5385  358 to 1023       37 to 79

+----------------+------------------------------+
|                |                              |
|                |                              |
|                |                              |
|       2        |              4               |
|                |                              |
|                |                              |
|                |                              |
|                |                              |
+----------------+------------------------------+
|                |                              |
|       1        |                              |
|                |              3               |
|                |                              |
+----------------+                              |
|       0        |                              |
+----------------+------------------------------+"""


def make(abilities):
    return rectangular_partition(abilities, 203, 80, 26, 1024)


def test_figure_6_as_text():
    lines = str(make([0.05, 0.10, 0.20, 0.30, 0.35])).splitlines()
    assert [line.rstrip() for line in lines] == FIGURE_6.splitlines()


def test_one_processor():
    text = str(make([3]))
    assert text.startswith("1 processor in 1 column of 1; ")
    assert "communication 0\n" in text and text.count("+") == 4


def test_many_processors_are_not_told_one_by_one():
    assert "\n... and 8 more\n" in str(make(range(1, 41)))


def test_a_picture(tmp_path):
    path = tmp_path / "square.png"
    make([1, 2, 3]).plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
