"""A run that goes on."""

import json

from benchmarks.paper_tables.measuring import missing_rounds
from benchmarks.paper_tables.points import Point, with_serial
from benchmarks.paper_tables.samples import append, read
from tests.benchmarks.paper_tables.samples_for_tests import sample


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    points = with_serial(Point("mlp", 64, 40, 2, m) for m in (1, 4, 4))
    assert [p.schedule for p in points] == ["serial", "1f1b", "1f1b"]
    file = tmp_path / "samples.jsonl"
    assert len(missing_rounds(read(file), points, 2)) == 6
    append(file, sample(points[0]))
    append(file, sample(points[2], round=1))
    # Stopped in the middle of a line.
    file.write_text(file.read_text() + '{"point": {"mod')
    assert missing_rounds(read(file), points, 2) == [
        (points[1], 0),
        (points[2], 0),
        (points[0], 1),
        (points[1], 1),
    ]
    append(file, sample(points[1]))
    assert [len(found) for found in read(file).values()] == [1, 1, 1]
    assert json.loads(file.read_text().splitlines()[0])["seconds"] == 3.0


def test_the_points_of_a_group_take_turns_while_its_hosts_are_up():
    few, many = ([Point("mlp", 64, 40, hosts, m) for m in (1, 4)] for hosts in (2, 4))
    mixed = [few[0], many[0], few[1], many[1]]
    found = missing_rounds({}, mixed, 2)
    assert [point for point, _ in found] == [*few, *few, *many, *many]
    assert [number for _, number in found] == [0, 0, 1, 1, 0, 0, 1, 1]
