"""The log of checks, and who fell behind."""

import json
import os

import pytest
from click.testing import CliRunner

from divisible.side_files import append_line
from pipeline.command_line.main import main
from pipeline.rebalancing.log import LoggedCheck, read_log, slow_ranks, stragglers


def write(path, speeds, moves=()):
    checks = []
    for i, of_ranks in enumerate(speeds, 1):
        moved = {"layers": [3], "bytes": 10, "seconds": 0.1} if i in moves else None
        checks.append(
            LoggedCheck(
                20 * i,
                float(i),
                [f"host{rank}" for rank in range(len(of_ranks))],
                of_ranks,
                [0, 2, 4],
                [0, 3, 4] if moved else None,
                0.1,
                0.1,
                "why",
                moved,
            )
        )
        checks[-1].append_to(path)
    return checks


CHECK = LoggedCheck(20, 1.0, ["a", "b"], [1, 2], [0, 2], None, 1, 1, "", None)._asdict()
SPEEDS = [[1, 2], [1, 2], [1, 0.9], [1, 1.0], [0.5, 2], [1, 2], [1, 2], [1, 2]]


def test_a_log_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "below" / "log.jsonl"
    assert write(path, SPEEDS, moves=[3]) == read_log(path)


def test_stragglers_are_slower_than_they_can_be(tmp_path):
    found = stragglers(write(tmp_path / "log", SPEEDS, moves=[3, 4]))
    assert [tuple(each) for each in found] == [
        (1, "host1", 60, 80, 0.45, 2),
        (0, "host0", 100, 100, 0.5, 0),
    ]
    assert stragglers([]) == []


def test_nobody_is_named_where_nothing_compares_ranks(tmp_path):
    known = write(tmp_path / "log", [[1, 0.4, 1]] * 3)
    unknown = [check._replace(speeds=None) for check in known]
    assert stragglers(unknown) == slow_ranks(unknown) == []
    for check in unknown[:1]:
        check.append_to(tmp_path / "log")
    assert read_log(tmp_path / "log") == [*known, unknown[0]]
    moved = {"layers": [3], "bytes": 10, "seconds": 0.1}
    words = unknown[0]._replace(moved=moved, new_cuts=[0, 3, 4]).move_in_words
    assert "the ranks are busy unequally, by slow hosts or by costly layers" in words
    result = CliRunner().invoke(main, ["stragglers", str(tmp_path / "log")])
    output = " ".join(result.output.split())
    assert "rank 1 on host1 has 0.40 of the speed of others in most checks" in output
    assert "1 check had nothing to compare ranks by" in output


def test_slow_ranks_are_slower_than_the_others_whatever_they_can_do(tmp_path):
    # One of two is compared with the other one.
    checks = write(tmp_path / "two", [[1, 0.5]] * 5)
    assert [tuple(each) for each in slow_ranks(checks)] == [(1, "host1", 0.5)]
    assert stragglers(checks) == []
    # Half of the checks and no more: that is a time, and stragglers tells it.
    speeds = [[1, 1, 1]] * 3 + [[1, 0.5, 1]] * 2
    assert slow_ranks(write(tmp_path / "three", speeds)) == []
    assert slow_ranks([]) == []


def test_the_command_names_them(tmp_path):
    write(tmp_path / "log", SPEEDS, moves=[3])
    result = CliRunner().invoke(main, ["stragglers", str(tmp_path / "log")])
    assert result.exit_code == 0, result.output
    assert "8 checks up to iteration 160, 1 move\n" in result.output
    assert "host1" in result.output
    assert "60 to 80" in result.output
    result = CliRunner().invoke(
        main, ["stragglers", str(tmp_path / "log"), "--below", "0.1"]
    )
    assert "no rank fell behind" in result.output


BROKEN = [
    "no JSON",
    "{}",
    "[]",
    "3",
    '{"iteration": 1}',
    "[" * 100_000,
    json.dumps({**CHECK, "speeds": [1.0]}),
    json.dumps({**CHECK, "speeds": ["fast", 1]}),
    json.dumps({**CHECK, "speeds": [float("nan"), 1]}),
    json.dumps({**CHECK, "speeds": [0, 1]}),
    json.dumps({**CHECK, "speeds": 3}),
    json.dumps({**CHECK, "hosts": None}),
    json.dumps({**CHECK, "iteration": "20"}),
    json.dumps({**CHECK, "cuts": {"0": 2}}),
    json.dumps({**CHECK, "moved": 3}),
    json.dumps({**CHECK, "moved": {"layers": 2}}),
    json.dumps({**CHECK, "went_back": "no"}),
    json.dumps({**CHECK, "another": 1}),
    json.dumps(CHECK)[:100],
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_left_out(tmp_path, line):
    path = tmp_path / "log"
    write(path, SPEEDS[:1])
    append_line(path, line)
    write(path, SPEEDS[1:3])
    words = "1 of 4 lines are left out; line 2 is not a check of Rebalance"
    with pytest.warns(UserWarning, match=words):
        assert len(read_log(path)) == 3
    result = CliRunner().invoke(main, ["stragglers", str(path)])
    assert result.exit_code == 0, result.output
    assert "3 checks" in result.output
    assert words in result.output


def test_the_newest_log_of_a_folder(tmp_path):
    write(tmp_path / "old.jsonl", SPEEDS[:2])
    write(tmp_path / "new.jsonl", SPEEDS)
    os.utime(tmp_path / "old.jsonl", (1, 1))
    # The newest of all is no log.
    (tmp_path / "samples.jsonl").write_text('{"n": 3}\n')
    os.utime(tmp_path / "new.jsonl", (2, 2))
    result = CliRunner().invoke(main, ["stragglers", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{tmp_path}/new.jsonl\n8 checks")
    empty = tmp_path / "empty"
    empty.mkdir()
    result = CliRunner().invoke(main, ["stragglers", str(empty)])
    assert result.exit_code == 2
    words = f"{empty} has no file *.jsonl that can be read here: name the file"
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize("line", BROKEN)
def test_a_file_without_a_check_is_refused(tmp_path, line):
    append_line(tmp_path / "log", line)
    with pytest.raises(ValueError, match="line 1 is not a check of Rebalance"):
        read_log(tmp_path / "log")


def test_a_run_may_go_on_with_other_ranks(tmp_path):
    write(tmp_path / "log", SPEEDS)
    write(tmp_path / "log", [[1, 1, 1], [1, 1, 0.1], [1, 1, 1]])
    found = stragglers(read_log(tmp_path / "log"))
    assert [(each.rank, each.first) for each in found] == [(2, 40), (1, 60), (0, 100)]
    assert slow_ranks(read_log(tmp_path / "log")) == []


def test_a_move_is_told_in_words(tmp_path):
    *_, check = write(tmp_path / "log", [[1, 2, 2]], moves=[1])
    assert check.move_in_words == (
        "iteration 20: rank 0 on host0 has 0.50 of the speed of others; 1 layer moved,"
        " from the cuts [0, 2, 4] to [0, 3, 4]: 10 B in 100 ms. A step is predicted to"
        " take 100 ms instead of 100 ms"
    )
    back = check._replace(went_back=True, reason="steps are longer: layers go back")
    assert back.move_in_words == (
        "iteration 20: steps are longer: layers go back. 1 layer moved, from the cuts"
        " [0, 2, 4] to [0, 3, 4]: 10 B in 100 ms"
    )
