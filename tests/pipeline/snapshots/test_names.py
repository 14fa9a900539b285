"""Names of snapshots: those that could not be found again are refused."""

from pathlib import Path

import pytest

from pipeline import SnapshotError, save_snapshot, snapshot
from pipeline.snapshots.names import pattern_of

REFUSED = ["/tmp/iter_{.updater.iteration}", "", ".", "..", "a/..", "/", "a/."]
REFUSED += ["last.partial", "{.updater.iteration}.partial", "a/b.replaced"]


@pytest.mark.parametrize("filename", REFUSED)
def test_names_that_cannot_be_resumed_are_refused_when_made(filename):
    with pytest.raises(ValueError, match="is no name for a snapshot"):
        snapshot(filename)


@pytest.mark.parametrize("filename", ["", "a/..", ".", "a.partial", "a.replaced", "/"])
def test_save_snapshot_refuses_them_as_well(filename):
    with pytest.raises(SnapshotError, match="is no name for a snapshot"):
        save_snapshot(filename, None, None)


def test_what_is_no_format_string_is_refused_when_made():
    with pytest.raises(ValueError, match="'iter_{' is no format string"):
        snapshot("iter_{")
    with pytest.raises(TypeError, match="filename must be a format string or a func"):
        snapshot(Path("iter"))


def test_fields_of_more_than_the_trainer_are_refused_when_made():
    with pytest.raises(ValueError, match="2 fields without a number.*{0.updater"):
        snapshot("{.updater.epoch}/iter_{.updater.iteration}")


def test_names_that_can_be_resumed():
    for filename in (
        "a",
        ".hidden",
        "epoch/iter_{.updater.iteration:06d}",
        "a/",
        "{0.a}/{0.b}",
    ):
        assert snapshot(filename).filename == filename


def test_the_pattern_finds_what_the_format_string_makes():
    assert pattern_of("run[1]_{.a}_{{b}}/{0.c:06d}") == "run[[]1]_*_{b}/*"
