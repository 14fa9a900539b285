"""The table of what is streamed has no empty column."""

from divisible.planning.disk import Disk
from divisible.streaming.report import RankMemory, StreamedLayer, StreamReport

RANK = RankMemory(2**20, 2**19, 2**18, None, 2**10)
REASON = "only Linear can be"


def report(seconds, disk=None):
    layers = (
        StreamedLayer(0, "Linear", 2**20, True, seconds, ""),
        StreamedLayer(2, "Scale", 2**10, False, None, REASON),
    )
    return StreamReport(layers, (RANK,), "/disk", disk)


def test_without_a_profile_no_time_is_known():
    head, *rows = str(report(None)).splitlines()
    assert head.split() == ["layer", "name", "bytes", "on", "disk"]
    assert rows[0].split() == ["0", "Linear", "1.0", "MiB", "yes"]
    assert rows[1].split() == ["2", "Scale", "1.0", "KiB", "no"]
    assert rows[2] == f"       cannot be on disk: {REASON}"
    assert rows[3].startswith("rank 0: ")
    assert all(len(line) <= 80 for line in [head, *rows[:3]])


def test_with_one_it_is():
    head, row, *_ = str(report(0.5, Disk(1e9, 1e9))).splitlines()
    assert head.endswith("on disk  longer by") and row.endswith("yes      500 ms")


def test_a_model_without_weights():
    head, row = str(StreamReport((), (RANK,), "/disk", None)).splitlines()
    assert head.startswith("layer  name") and row.startswith("rank 0")
