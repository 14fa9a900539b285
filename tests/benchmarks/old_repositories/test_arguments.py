"""Folders that have some of the source trees, or none."""

import pytest

from benchmarks.common.results import Result
from benchmarks.old_repositories.arguments import found_in, parser_of, write_left_out
from benchmarks.old_repositories.model_table import MODELS
from benchmarks.old_repositories.port_table import PORTS
from benchmarks.old_repositories.programs import PROGRAMS

PARSER = parser_of("Runs some.", "programs")


@pytest.mark.parametrize("table", [MODELS, PORTS, PROGRAMS])
def test_trees_that_are_not_there_are_left_out(table, tmp_path, capsys):
    (tmp_path / table[0].name).mkdir()
    found = found_in(table, PARSER, tmp_path)
    assert found == [each for each in table if each.name == table[0].name]
    result = Result("some", tmp_path / "result.txt")
    write_left_out(result, table, found)
    n, other = len(table) - len(found), next(x for x in table if x not in found)
    assert f"{n} of {len(table)} are left out" in capsys.readouterr().out
    write_left_out(result, found, found)
    result.save()
    text = (tmp_path / "result.txt").read_text()
    assert text.count("left out") == 1
    assert f"https://github.com/{other.repository} at {other.commit}" in text


def test_a_folder_without_trees_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        found_in(MODELS, PARSER, tmp_path)
    assert caught.value.code == 2
    assert f"into DIR/{MODELS[0].name}" in capsys.readouterr().err
    assert found_in([], PARSER, tmp_path) == []
