"""Goals of exchanges, and the table of what was measured."""

import argparse

from benchmarks.common.results import Result
from benchmarks.data_parallel.exchange import MEBI, WAYS, Goals, Table, goals_of_sizes

SECONDS = {
    "MPI fp32": [8.0, 8.0],
    "fp32": [8.0, 8.0],
    "fp16": [4.0, 8.0],
    "bf16": [4.0, 4.0],
    "e4m3": [2.0, 2.0],
    "int8": [4.0, 4.0],
    "oyama2017": [2.0, 2.0],
}


def of_size(elements):
    sent = dict.fromkeys(WAYS, 10**6)
    parts = {name: {"wire": 0.5} for name in WAYS}
    return [elements, SECONDS, sent, parts]


def test_goals_say_what_was_missed():
    goals = Goals()
    goals_of_sizes(goals, 2, [of_size(MEBI), of_size(8 * MEBI)])
    assert goals.lines == [
        "2 hosts, 8 Mi: int8 over MPI: 2.00, wanted 3.6: MISSED",
        "2 hosts, 8 Mi: int8 over fp32: 2.00, wanted 3.3: MISSED",
        "2 hosts, 8 Mi: e4m3 over MPI: 4.00, wanted 3.6: met",
        "2 hosts, 8 Mi: e4m3 over fp32: 4.00, wanted 3.3: met",
        "2 hosts, 8 Mi: fp32 over MPI: 1.00, wanted 1: met",
        "2 hosts, 8 Mi: fp16 over fp32: 1.50, wanted 1.8: MISSED",
    ]


def test_each_way_has_a_line(tmp_path):
    file = tmp_path / "result.txt"
    result = Result("data_parallel_exchange", file)
    table = Table(result, argparse.Namespace(cpu=1.0, rounds=1))
    table.write({"sizes": [of_size(8 * MEBI)]})
    result.save()
    head, *lines = file.read_text().splitlines()
    assert head.split()[:2] == ["elements", "way"]
    assert len(lines) == len(WAYS)
    words = next(line for line in lines if "int8" in line).split()
    assert words[:5] == ["8", "Mi", "int8", "4000.0", "2.00"]
