"""The lines of flight records, by time."""

from divisible.communication.flight_record import FlightRecord
from divisible.communication.flight_table import rows
from tests.divisible.communication.test_flight_report import IN_EVALUATE, TRAINING, log


def test_a_table_of_several_pipelines_says_which():
    (*_, row) = rows([log(0, *IN_EVALUATE)], 9)
    assert (row.call, row.event) == ("0b11:3 evaluate", "waits for all ranks to save")


def test_lines_are_in_the_order_of_time():
    records = [FlightRecord() for _ in range(2)]
    for rank, record in enumerate(records):
        record.name_rank(rank, 2)
    for i in range(4):
        records[i % 2].begin_call(TRAINING, i, "step")
    lines = rows([record.log() for record in records], 1)
    assert [(row.rank, row.call, row.event) for row in lines] == [
        ("0", "2 step", "begins step"),
        ("1", "3 step", "begins step"),
    ]
