"""Lines of JSON, of which the last may be unfinished."""

from benchmarks.common.json_lines import append, read


def test_lines_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "folder" / "lines.jsonl"
    assert read(path) == []
    for i in range(3):
        append(path, {"i": i, "of": [1.5, None]})
    assert read(path) == [{"i": i, "of": [1.5, None]} for i in range(3)]


def test_an_unfinished_line_is_left_out(tmp_path):
    path = tmp_path / "lines.jsonl"
    append(path, {"i": 0})
    with open(path, "a") as file:
        file.write('{"i": 1, "of"')
    assert read(path) == [{"i": 0}]
    append(path, {"i": 2})
    assert read(path) == [{"i": 0}, {"i": 2}]
